"""Utilities over the machine: who, when, which ports, and programs that run other programs."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from gpufleet.lab.shell.builtins import BUILTINS, signal_number
from gpufleet.lab.shell.call import Call, DeadlinePassed, ExitShell, Program
from gpufleet.lab.shell.options import read_options
from gpufleet.lab.shell.streams import byte_text
from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.lab.simfs import FsError
from gpufleet.lab.simhost import PATH, Killed, Service, SudoRule, exec_start

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_SCALE = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(text: str) -> float | None:
    if text in {"infinity", "inf"}:
        return float("inf")
    found = _DURATION.fullmatch(text)
    return float(found[1]) * _SCALE[found[2]] if found else None


def _sleep(call: Call) -> int:
    for word in call.arguments:
        seconds = _seconds(word)
        if seconds is None:
            return call.complain(f"sleep: invalid time interval '{word}'")
        call.pause(seconds)
    return 0


def _timeout(call: Call) -> int:
    options = read_options(call, "", "ks", words={"kill-after": "k", "signal": "s"}, stop=True)
    if len(options.operands) < 2:
        return call.complain("timeout: missing operand", 125)
    seconds = _seconds(options.operands[0])
    if seconds is None:
        return call.complain(f"timeout: invalid time interval '{options.operands[0]}'", 125)
    deadline = call.shell.shared.elapsed + seconds if seconds else float("inf")
    deadlines = call.shell.shared.deadlines
    deadlines.append(deadline)
    try:
        return call.shell.program(options.operands[1:], dict(call.env), user=call.user, stdin=call.stdin)
    except DeadlinePassed as passed:
        if passed.at != deadline:
            raise
        return 137 if signal_number(options.last("s", "TERM")) == 9 else 124
    finally:
        deadlines.remove(deadline)


def _env(call: Call) -> int:
    options = read_options(call, "i", "u", stop=True)
    env = {} if "i" in options else dict(call.env)
    for name in options.values.get("u", []):
        env.pop(name, None)
    words = options.operands
    while words and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if words:
        return call.shell.program(words, env, user=call.user, stdin=call.stdin)
    call.say(*(f"{name}={value}" for name, value in env.items()))
    return 0


def _nohup(call: Call) -> int:
    return call.shell.program(call.arguments, dict(call.env), user=call.user, stdin=call.stdin)


def _sh(call: Call) -> int:
    """`sh -s`, `sh -c text` and `sh file`, as a shell of its own."""
    child = call.shell.child()
    child.variables = dict(call.env) | {"IFS": " \t\n"}
    child.exported = set(call.env)
    child.functions, child.options, child.traps, child.locals = {}, set(), {}, []
    child.parameters, child.guarded, child.user, child.cwd = [], 0, call.user, call.cwd
    child.status = 0
    words = call.arguments
    while words and words[0][:1] == "-" and words[0] not in {"-s", "-c", "-"}:
        for letter in words.pop(0)[1:]:
            if letter not in "eu":
                raise Unsupported(f"sh -{letter}")
            child.options.add(letter)
    child.fds = {0: call.stdin, 1: call.out, 2: call.err}
    if words[:1] == ["-c"]:
        text, child.name, child.parameters = words[1], (words[2:3] or ["sh"])[0], words[3:]
    elif not words or words[0] in {"-s", "-"}:
        child.parameters = words[2:] if words[1:2] == ["--"] else words[1:]
        text = call.stdin.rest()
    else:
        try:
            text = call.host.fs.read(call.host.fs_path(words[0], call.cwd), call.user).decode("latin-1")
        except FsError:
            return call.complain(f"sh: 0: cannot open {words[0]}: No such file", 2)
        child.name, child.parameters = words[0], words[1:]
    try:
        return child.run_as_process(text)
    except Killed as killed:
        if any(call.host.signalled(pid) for pid in child.shared.pids):
            raise
        return 128 + killed.signal


def _sudo(call: Call) -> int:
    options = read_options(call, "nkSHEl", "pu", stop=True)
    user = call.host.users[call.user]
    target = options.last("u", "root")
    words = options.operands
    if "k" in options and not words:
        return 0
    refusal = _sudo_refusal(call, user.sudo, user.password, ask="S" in options, forced="n" in options)
    if refusal is not None:
        return refusal
    if "l" in options:
        call.say(
            f"User {call.user} may run the following commands on {call.host.name}:", "    (ALL : ALL) ALL"
        )
        return 0
    env = (
        dict(call.env)
        if "E" in options
        else {name: value for name, value in call.env.items() if name in {"PATH", "LC_ALL", "LANG", "TERM"}}
    )
    env |= {"HOME": call.host.users[target].home, "USER": target, "LOGNAME": target, "SUDO_USER": call.user}
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if not words:
        return call.complain("usage: sudo -h | -K | -k | -V")
    place = call.shell.find_program(words[0], env.get("PATH"))
    if place is None and words[0] not in BUILTINS:
        return call.complain(f"sudo: {words[0]}: command not found")
    return call.shell.program(words, env, user=target, stdin=call.stdin)


def _sudo_refusal(call: Call, rule: SudoRule, password: str, *, ask: bool, forced: bool) -> int | None:
    """None when sudo goes ahead; the password is one line of standard input."""
    if call.user == "root" or rule is SudoRule.NOPASSWD:
        return None
    if rule is SudoRule.REQUIRETTY:
        return call.complain("sudo: sorry, you must have a tty to run sudo")
    if forced:
        return call.complain("sudo: a password is required")
    if not ask:
        call.complain(
            "sudo: a terminal is required to read the password; either use the -S option to read from standard input"
            " or configure an askpass helper"
        )
        return call.complain("sudo: a password is required")
    given = call.stdin.line()
    if given is None:
        return call.complain("sudo: no password was provided\nsudo: a password is required")
    if rule is SudoRule.NONE and password == "":
        return call.complain(f"{call.user} is not in the sudoers file.")
    if given.rstrip("\n") == byte_text(password):
        return None
    call.complain("Sorry, try again.")
    call.stdin.rest()
    return call.complain("sudo: no password was provided\nsudo: 1 incorrect password attempt")


def _id(call: Call) -> int:
    options = read_options(call, "ungG")
    name = options.operands[0] if options.operands else call.user
    user = call.host.users.get(name)
    if user is None:
        return call.complain(f"id: '{name}': no such user")
    flags = options.flags
    if "G" in flags:
        call.say(
            " ".join(user.groups) if "n" in flags else " ".join(str(_gid(user.uid, g)) for g in user.groups)
        )
    elif "u" in flags:
        call.say(name if "n" in flags else str(user.uid))
    elif "g" in flags:
        call.say(user.groups[0] if "n" in flags else str(user.uid))
    else:
        groups = ",".join(f"{_gid(user.uid, group)}({group})" for group in user.groups)
        call.say(f"uid={user.uid}({name}) gid={user.uid}({user.groups[0]}) groups={groups}")
    return 0


def _gid(uid: int, group: str) -> int:
    return {"docker": 998, "root": 0}.get(group, uid)


def _date(call: Call) -> int:
    options = read_options(call, "u", "d")
    now: datetime = call.host.clock.now().astimezone(UTC)
    if "d" in options:
        if not re.fullmatch(r"@\d+", options.last("d")):
            raise Unsupported(f"date -d {options.last('d')}")
        now = datetime.fromtimestamp(int(options.last("d")[1:]), UTC)
    template = options.operands[0] if options.operands else "+%a %b %e %H:%M:%S UTC %Y"
    if not template.startswith("+"):
        return call.complain(f"date: invalid date '{template}'")
    template = (
        template[1:].replace("%s", str(int(now.timestamp()))).replace("%N", f"{now.microsecond * 1000:09d}")
    )
    template = (
        template.replace("%F", "%Y-%m-%d")
        .replace("%T", "%H:%M:%S")
        .replace("%z", "+0000")
        .replace("%Z", "UTC")
    )
    call.say(now.strftime(template))
    return 0


def _uname(call: Call) -> int:
    options = read_options(call, "srmnavp")
    values = {"s": "Linux", "n": call.host.name, "r": call.host.kernel, "v": "#1 SMP", "m": "x86_64"}
    wanted = "snrvm" if "a" in options else ("".join(letter for letter in values if letter in options) or "s")
    call.say(" ".join(values[letter] for letter in wanted) + (" GNU/Linux" if "a" in options else ""))
    return 0


def _hostname(call: Call) -> int:
    read_options(call, "sf")
    call.say(call.host.name)
    return 0


def _whoami(call: Call) -> int:
    call.say(call.user)
    return 0


def _nproc(call: Call) -> int:
    call.say(str(call.host.cores))
    return 0


def _ss(call: Call) -> int:
    options = read_options(call, "Htlnap")
    if "H" not in options:
        call.say("State  Recv-Q Send-Q Local Address:Port Peer Address:Port Process")
    for listener in call.host.listeners:
        address = "*" if listener.address == "::" else listener.address
        call.say(f"LISTEN 0      4096   {f'{address}:{listener.port}':>20} {'0.0.0.0:*':>14}")
    return 0


def _systemctl(call: Call) -> int:
    long = {"quiet": "q", "now": "n", "no-pager": "n", "user": "n", "property": "p"}
    options = read_options(call, "q", "p", words=long)
    verb, *units = options.operands or [""]
    names = [unit.removesuffix(".service") for unit in units]
    if verb == "show":
        return _show_units(call, names, options.values.get("p", []))
    if verb in {"is-active", "is-enabled"}:
        known = [call.host.services.get(name) for name in names]
        if verb == "is-active":
            words = ["active" if unit and unit.active else "inactive" for unit in known]
        else:
            words = ["enabled" if unit else "not-found" for unit in known]
        if "q" not in options:
            call.say(*words)
        found = {"active", "enabled"} & set(words)
        return 0 if found else 3 if verb == "is-active" else 4
    if verb in {"start", "stop", "restart", "daemon-reload", "enable", "disable"}:
        if call.user != "root":
            return call.complain("Failed to connect to bus: Interactive authentication required.")
        for name in names:
            if name not in call.host.services and verb in {"start", "restart"} and _from_file(call, name):
                continue
            if name not in call.host.services:
                return call.complain(f"Failed to {verb} {name}.service: Unit {name}.service not found.", 5)
            if verb in {"start", "stop", "restart"}:
                call.host.change_service(name, active=verb != "stop", restarted=verb == "restart")
        return 0
    raise Unsupported(f"systemctl {verb}")


def _from_file(call: Call, name: str) -> bool:
    """A oneshot unit that stands under /etc/systemd/system and is not loaded yet: what it starts is run."""
    words = exec_start(call.host, name)
    if not words or call.shell.program(words, {"PATH": PATH}, user="root", stdin=call.stdin):
        return False
    call.host.services[name] = Service()
    return True


def _show_units(call: Call, names: list[str], wanted: list[str]) -> int:
    """`systemctl show -p ... UNIT...`: a block a unit, under the name that an alias leads to."""
    blocks = []
    for name in names:
        unit = call.host.services.get(name)
        values = {
            "Id": f"{unit.alias or name if unit else name}.service",
            "LoadState": "loaded" if unit else "not-found",
            "ActiveState": "active" if unit and unit.active else "inactive",
        }
        if not set(wanted) <= values.keys():
            raise Unsupported(f"systemctl show -p {' '.join(wanted)}")
        blocks.append("".join(f"{key}={value}\n" for key, value in values.items() if key in wanted))
    call.out.write("\n".join(blocks))
    return 0


def _ps(call: Call) -> int:
    options = read_options(call, "", "po")
    pid = options.last("p")
    process = call.host.processes.get(int(pid)) if pid.isdigit() else None
    if process is None:
        return 1
    values = {"pid=": str(process.pid), "ppid=": "1", "user=": process.user, "args=": process.command}
    wanted = options.last("o", "pid=")
    if wanted not in values:
        raise Unsupported(f"ps -o {wanted}")
    call.say(values[wanted])
    return 0


def _builtin(call: Call) -> int:
    """A builtin reached as a program (`env printf`, `/bin/echo`)."""
    child = call.shell.child()
    child.user = call.user
    child.fds = {0: call.stdin, 1: call.out, 2: call.err}
    try:
        return BUILTINS[call.argv[0].rpartition("/")[2]](child, list(call.argv))
    except ExitShell as ending:
        return ending.status


SYSTEM_TOOLS: dict[str, Program] = {
    "sleep": _sleep,
    "timeout": _timeout,
    "env": _env,
    "nohup": _nohup,
    "setsid": _nohup,
    "sh": _sh,
    "sudo": _sudo,
    "id": _id,
    "date": _date,
    "uname": _uname,
    "hostname": _hostname,
    "whoami": _whoami,
    "nproc": _nproc,
    "ss": _ss,
    "systemctl": _systemctl,
    "ps": _ps,
    "true": _builtin,
    "false": _builtin,
    "echo": _builtin,
    "printf": _builtin,
    "test": _builtin,
    "[": _builtin,
    "kill": _builtin,
    "pwd": _builtin,
}
