"""Code inside the sandbox. It imports only the standard library and itself.

Its source is sent to a bare interpreter, so the sandbox needs no access to our files.
"""
