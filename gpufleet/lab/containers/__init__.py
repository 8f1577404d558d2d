"""The container engine of a simulated host, spoken to through docker's and podman's command lines.

What is this room? The container engine of a simulated host, spoken to through docker's and podman's command lines.
What comes in? Argument lists, faults, engines that run inside.
What goes out? Exit codes and texts as the real programs print them; containers that change state.
Who may import me? lab.
"""
