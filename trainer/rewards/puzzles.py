"""Which reasoning-gym tasks can be used, by name, without importing the library.

A test compares these names with the installed version, and looks through its scorers
for any that evaluates text.
"""

from __future__ import annotations

_EVALUATES = "its scorer runs the answer as Python code."

REFUSED_TASKS = {
    "binary_matrix": _EVALUATES,
    "bitwise_arithmetic": "its scorer runs the row's own text as Python code.",
    "composite": "it is a mixture of other tasks.",
    "countdown": _EVALUATES + " The Countdown rule judges the same task safely.",
    "intermediate_integration": _EVALUATES,
    "n_queens": _EVALUATES,
    "number_sorting": _EVALUATES,
    "polynomial_multiplication": _EVALUATES,
    "puzzle24": _EVALUATES,
    "simple_integration": _EVALUATES,
    "spiral_matrix": _EVALUATES,
    "string_insertion": _EVALUATES,
}

TASKS = tuple(
    """
    ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf
    binary_alternation boxnet caesar_cipher calendar_arithmetic
    chain_sum circuit_logic codeio coin_flip color_cube_rotation complex_arithmetic
    count_bits count_primes course_schedule cryptarithm decimal_arithmetic
    decimal_chain_sum dice emoji_mystery family_relationships figlet_font
    fraction_simplification futoshiki game_of_life game_of_life_halting gcd
    graph_color group_anagrams gsm_symbolic isomorphic_strings jugs kakurasu
    knight_swap knights_knaves largest_island lcm leg_counting letter_counting
    letter_jumble list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku
    modulo_grid needle_haystack number_filtering number_format number_sequence
    palindrome_generation palindrome_partitioning path_star polynomial_equations
    pool_matrix power_function prime_factorization products propositional_logic
    quantum_lock ransom_note rearc rectangle_count rotate_matrix rotten_oranges
    rubiks_cube rush_hour self_reference sentence_reordering shortest_path
    simple_equations simple_geometry sokoban spell_backward string_manipulation
    string_splitting string_synthesis sudoku survo syllogism time_intervals
    tower_of_hanoi tsumego word_ladder word_sequence_reversal word_sorting
    zebra_puzzles
    """.split()  # noqa: SIM905 - a list of 94 strings would take a page
)
