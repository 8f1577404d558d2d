"""Who may change a host: leases with a heartbeat, and the fence that stops a stale holder.

What is this room? Who may change a host: leases with a heartbeat, and the fence that stops a stale holder.
What comes in? A holder and a run.
What goes out? Commands that take, renew and give back; guarded commands.
Who may import me? change, cli.
"""
