"""The only room that talks to people.

What is this room? The only room that talks to people.
What comes in? The command line and the environment.
What goes out? Data on standard output, everything else on standard error, an exit code.
Who may import me? Nobody.
"""
