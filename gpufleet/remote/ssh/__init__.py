"""SSH itself: what ssh_config and known_hosts say, keys, connections, sessions.

What is this room? SSH itself: what ssh_config and known_hosts say, keys, connections, sessions.
What comes in? A Target.
What goes out? A session, or the reason why there is none.
Who may import me? remote, lab, cli.
"""
