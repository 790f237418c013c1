"""Commands of `meshwright`, one file each: files and printed results; no logic of their own.

`add(commands)` of a file adds the command's parser, whose `run` takes the parsed arguments. The
rooms are imported inside functions: a command loads only what it needs.
"""
