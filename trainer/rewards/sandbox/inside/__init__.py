"""What runs inside the sandbox: it imports the standard library and itself alone.

No file of it is there to be read: its source is sent to a bare interpreter, which needs
no way into our folders then.
"""
