"""Values that no page expects, as they stand in an address or a form."""

from __future__ import annotations

# Percent-encoded, by what they are. Any of them may stand for any parameter.
VALUES: dict[str, str] = {
    "empty": "",
    "NUL": "%00",
    "a NUL inside": "1%00",
    "a lone surrogate": "%ED%A0%80",
    "invalid UTF-8": "%FF%FE1",
    "overlong UTF-8": "%C0%AF",
    "10 to the 400": "1" + "0" * 400,
    "5,000 digits": "9" * 5_000,
    "an exponent beyond floats": "1e400",
    "no number": "NaN",
    "infinity": "-Infinity",
    "below zero": "-1",
    "zero": "0",
    "2 to the 31": "2147483648",
    "2 to the 63": "9223372036854775808",
    "a fraction": "0.5",
    "hexadecimal": "0x10",
    "an underscore": "1_0",
    "an Arabic digit": "%D9%A1",
    "a list": "1,2,,3,1",
    "right-to-left override": "%E2%80%AEgnp.exe",
    "a line break": "a%0D%0ASet-Cookie:%20a=b",
    "100 kB": "x" * 100_000,
    "SQL": "1'%20OR%201=1;--%20%25%5F%5C",
    "markup": "%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
    "a template": "%7B%7B7*7%7D%7D%7B%25%20load%20%25%7D%25(a)s%25n",
    "a path": "../../../../etc/passwd",
    "JSON": "%7B%22a%22:%5B1,null%5D%7D",
    "JSON too deep": "%5B" * 2_000,
    "half of a pattern": "(a%2B%2B%5B%5C",
}
# How a parameter may be spelt: twice, as PHP's list, as an item of one.
SPELLINGS: dict[str, str] = {
    "twice": "{0}=1&{0}=x",
    "a list of PHP's": "{0}[]=1&{0}[]=2",
    "an item of a list": "{0}[0]=1&{0}.x=1",
    "no value": "{0}",
    "hundreds of times": "&".join(["{0}=1"] * 900),
}


def spellings(name: str) -> dict[str, str]:
    """Query strings that ask for this parameter in each hostile way."""
    plain = {of: f"{name}={value}" for of, value in VALUES.items()}
    return plain | {of: text.format(name) for of, text in SPELLINGS.items()}
