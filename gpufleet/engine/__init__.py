"""What runs inside a container: vLLM today.

What is this room? What runs inside a container: vLLM today.
What comes in? A pool's engine section and a slot.
What goes out? The run command, the readiness questions, metric names.
Who may import me? deploy, lab, cli.
"""
