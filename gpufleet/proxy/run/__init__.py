"""Sockets, tasks and files of the data plane.

What is this room? Sockets, tasks and files of the data plane.
What comes in? Connections.
What goes out? Answers, metrics, ledger lines.
Who may import me? proxy, lab, cli.
"""
