"""How words reach a host. It knows nothing of GPUs, pools or vLLM.

What is this room? How words reach a host. It knows nothing of GPUs, pools or vLLM.
What comes in? A Command, and a host's SSH options.
What goes out? Exit or Lost.
Who may import me? hosts, change, deploy, lab, cli.
"""
