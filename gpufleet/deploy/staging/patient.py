"""Waiting on a file system that may not answer: a shell function that gives up where the kernel never would.

A read from a share whose server is gone blocks in the kernel, beyond every signal, and a shell that waits for it blocks
as well. So whatever touches such a place runs beside the shell, which only looks whether it still runs, and leaves it
behind when it does not come back: it ends by itself once the server is there again, or with the next boot.
"""

from __future__ import annotations

ANSWER_SECONDS = 20
"""How long a directory may take to be read before its server counts as gone; one that is slow answers within seconds."""

PATIENTLY = """
grown() { stat -c %s "$1" 2>/dev/null || echo 0; }
patiently() {
  limit=$1 sink=$2
  shift 2
  "$@" >>"$sink" 2>/dev/null </dev/null &
  work=$! quiet=0 ticks=0 mark=$(grown "$sink")
  while kill -0 "$work" 2>/dev/null; do
    ticks=$((ticks + 1))
    if [ "$ticks" -le 20 ]; then sleep 0.05 2>/dev/null || sleep 1; continue; fi
    sleep 1
    reached=$(grown "$sink")
    if [ "$reached" != "$mark" ]; then mark=$reached quiet=0; else quiet=$((quiet + 1)); fi
    if [ "$quiet" -ge "$limit" ]; then
      kill -9 "$work" 2>/dev/null
      return 124
    fi
  done
  wait "$work" 2>/dev/null
}
"""
"""`patiently SECONDS FILE COMMAND...`: its output is appended to FILE; 124 when FILE has not grown for so long."""
