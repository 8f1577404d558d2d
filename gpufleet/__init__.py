"""gpufleet: large language models on your own GPU machines, by SSH.

What is this room? The house itself; every room below it is a noun of the domain.
What comes in? Nothing: importing the package costs nothing.
What goes out? The version.
Who may import me? Everybody.
"""

__version__ = "0.1.0"
