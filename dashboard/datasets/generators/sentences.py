"""What a task is, where its package says nothing of it, or what another task is."""

SENTENCES = {
    "ab": "Applies rewriting rules to a row of tokens such as A# #B until none fits",
    "acre": "Tells from observations whether objects switch a detector on",
    "aiw": "Counts the siblings, friends or colleagues that somebody has",
    "arc_agi": "Finds the rule behind pairs of coloured grids and applies it once more",
    "bf": "Tells what a Brainf*** program prints",
    "boxnet": "Plans how arms in the cells of a grid move boxes to their targets",
    "calendar_arithmetic": "Reckons with dates, weekdays and leap years",
    "emoji_mystery": "Deciphers a sentence that is hidden in an emoji",
    "gsm_symbolic": "Asks word problems of grade school with other names and numbers",
    "list_functions": "Finds the function behind pairs of lists, then applies it",
    "number_format": "Picks the largest or smallest of numbers in several notations",
    "puzzle24": "Makes 24 of four numbers by arithmetic",
    "rearc": "Gives puzzles like those of ARC, made anew by its rules",
    "string_manipulation": "Rewrites a string by rules until none applies",
    "survo": "Fills a grid with numbers so that its rows and columns have given sums",
}
