"""A small POSIX shell over a simulated host: no process, no file, no clock of this machine is touched.

What is this room? A parser and interpreter for the dialect that gpufleet sends to hosts, and the utilities it uses.
What comes in? Script text, standard input and a simulated host.
What goes out? Exit status and both streams, or a loud refusal of what lies outside the dialect.
Who may import me? lab.
"""
