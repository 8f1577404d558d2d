"""A fleet on one machine: simulated hosts behind real SSH, engines that answer like vLLM.

What is this room? A fleet on one machine: simulated hosts behind real SSH, engines that answer like vLLM.
What comes in? A description of hosts and a script of faults.
What goes out? A Transport in memory, an SSH server on loopback, engines on HTTP.
Who may import me? cli, tests.
"""
