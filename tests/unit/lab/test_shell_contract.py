"""The lab's shell against the real ones: same standard output, same exit status."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.lab.shell.run import run_shell
from tests.kit.lab_kit import bare_host

SHELLS = [path for path in ("/bin/sh", "/bin/bash") if shutil.which(path)]

SCRIPTS = {
    "words": "printf '<%s>' a 'b c' \"d  e\" f\\ g ''; echo",
    "empty quotes": "set -- '' \"\" x''y; echo $#; printf '<%s>' \"$@\"; echo",
    "single keeps": "printf '%s\\n' '$HOME `x` \\n \"q\"'",
    "double escapes": 'v=1; printf "%s\\n" "a\\$v \\"q\\" \\\\ \\x $v"',
    "continuation": 'echo a \\\n  b; echo "c\\\nd"',
    "comment": "echo a # b\n# c\necho d#e",
    "variable forms": 'v=abc; echo $v ${v} "${v}d" $v$v',
    "default": 'unset v; echo ${v:-x} ${v-y} "${v:-a b}"; v=; echo [${v:-x}] [${v-y}]',
    "default nested": "unset v w; w=z; echo ${v:-${w:-q}} ${v:-$(echo sub)} ${v:-'a  b'}",
    "default split": 'unset v; set -- ${v:-a b "c d"}; echo $#',
    "default in quotes": "unset v; printf '%s\\n' \"${v:-its}\" \"${v:-\\}}\"",
    "assign default": "unset v; echo ${v:=x}; echo $v; : ${w:=}; echo [$w]",
    "alternative": 'v=1; echo ${v:+set} [${n:+set}] ${v+yes} [${n+yes}]; set -- ${1+"$@"}; echo $#',
    "required": "(echo ${n:?missing}) 2>/dev/null || echo stopped; v=1; echo ${v:?missing}",
    "length": "v=hello; echo ${#v}; set -- a b c; echo ${#} $#",
    "prefix": "v=/usr/lib/x.tar.gz; echo ${v#*/} ${v##*/} ${v%.*} ${v%%.*}",
    "prefix quoted": "v='a*b*c'; echo \"${v#a'*'}\" \"${v%'*'*}\"; p='*'; echo \"${v#a\"$p\"}\"",
    "prefix none": "v=abc; echo ${v#x} ${v%x} ${v#abc}end",
    "prefix class": "v=x123; echo ${v##[a-z]} ${v%%[0-9]*} ${v#?}",
    "positional": "set -- a 'b c' d; echo $1 \"$2\" $3 $4; shift; echo $1 $#",
    "at": "set -- a 'b c' ''; for x in \"$@\"; do printf '<%s>' \"$x\"; done; echo",
    "at joined": "set -- a 'b c'; printf '<%s>' \"x$@y\"; printf '<%s>' x\"$@\"; echo",
    "at unquoted": "set -- 'a b' c; printf '<%s>' $@; printf '<%s>' $*; echo",
    "star": 'set -- a b c; IFS=-; echo "$*"; IFS=; echo "$*"',
    "at none": "set --; printf '<%s>' \"$@\"; printf '<%s>' a \"$@\" b; echo",
    "ten": "set -- 1 2 3 4 5 6 7 8 9 ten; echo ${10} $10",
    "split": "v='  a  b '; printf '<%s>' $v x$v; echo",
    "split ifs": "IFS=:; v='a::b:'; printf '<%s>' $v; echo",
    "split mixed": "IFS=' :'; v=' a : b :: c'; printf '<%s>' $v; echo",
    "no split in assignment": "v='a  b'; w=$v; printf '<%s>' \"$w\"; echo",
    "substitution": "v=$(printf 'a\\nb\\n\\n'); printf '<%s>' \"$v\"; echo",
    "substitution nested": "echo $(echo $(echo deep) \"$(echo 'q  q')\")",
    "substitution status": "v=$(exit 3); echo $?; $(exit 4); echo $?",
    "substitution case": "v=$(case a in (a) echo yes;; esac); echo $v",
    "arithmetic": "n=5; echo $((n*2+1)) $((n%3)) $((-7/2)) $((1<<4)) $((n>3&&n<9)) $((!n))",
    "arithmetic more": "n=2; echo $(( (n+1)*3 )) $((n?7:8)) $((0x1f)) $((010)) $(($n+1)) $((n==2)) $((~0))",
    "arithmetic assign": "n=1; echo $((n+=4)); echo $n; : $((m=n*2)); echo $m",
    "arithmetic unset": "echo $((nothing+1)); e=; echo $((e+2))",
    "and or": "true && echo a || echo b; false && echo c || echo d; ! true || echo e",
    "status": "false; echo $?; (exit 7); echo $?; ! false; echo $?",
    "if": "if false; then echo a; elif true; then echo b; else echo c; fi; if false; then :; fi; echo $?",
    "for": "for i in 1 2 3; do echo $i; done; for i in; do echo no; done; echo $?",
    "for params": "set -- x y; for i; do echo $i; done; for i do echo $i; done",
    "for break": "for i in 1 2 3 4; do [ $i = 2 ] && continue; [ $i = 4 ] && break; echo $i; done",
    "nested break": "for i in 1 2; do for j in 1 2; do echo $i$j; break 2; done; done; echo out",
    "while": "n=0; while [ $n -lt 3 ]; do n=$((n+1)); echo $n; done; until [ $n -eq 0 ]; do n=$((n-1)); done; echo $n",
    "while read": "printf 'a b c\\n  d e\\nlast' | while read -r x y; do echo \"[$x][$y]\"; done; echo $?",
    "read ifs": "printf 'a:b:c:d\\n' | { IFS=: read -r x y z; echo \"$x $y $z\"; }",
    "read raw": "printf 'a\\\\b  c  \\n' | { IFS= read -r x; printf '<%s>' \"$x\"; }; echo",
    "read here": 'while read -r a b; do echo "$b $a"; done <<EOF\n1 2\n3 4 5\nEOF\n',
    "case": "for x in a.txt b '' 'c d' '*'; do case $x in *.txt) echo txt;; b|c) echo bc;; '') echo empty;; '*') echo star;; *\\ *) echo space;; *) echo other;; esac; done",
    "case class": "for x in 5 a Z -; do case $x in [0-9]) echo d;; [!a-z]) echo not;; *) echo l;; esac; done; case x in y) ;; esac; echo $?",
    "case quoted pattern": "p='a*'; case abc in \"$p\") echo no;; $p) echo yes;; esac",
    "function": 'f() { echo "f $1 $#"; return 3; }; f a b; echo $?; f',
    "function local": "x=1; f() { local x; x=2; echo $x; }; f; echo $x; g() { local y=3 z; echo $y[$z]; }; g; echo [$y]",
    "function status": "f() { false; }; f; echo $?; f() { return; }; false; f; echo $?",
    "function recursion": "f() { [ $1 -le 1 ] && { echo 1; return; }; echo $(( $1 * $(f $(($1-1))) )); }; f 5",
    "function subshell": "f() ( x=2; exit 4 ); x=1; f; echo $? $x",
    "group": "{ echo a; echo b; } | wc -l | tr -d ' '; { echo c; false; }; echo $?",
    "subshell": "x=1; (x=2; cd /; echo $x); echo $x; (exit 5); echo $?",
    "pipeline status": "true | false; echo $?; false | true; echo $?; ! true | false; echo $?",
    "pipe variables": "x=1; echo 2 | { read -r y; x=$y; echo $x; }; echo $x",
    "redirect": "echo a > f; echo b >> f; cat f; cat < f | head -n 1; echo x >f; cat f",
    "redirect err": "{ echo out; echo err >&2; } 2>/dev/null; { echo out; echo err >&2; } 2>&1 >/dev/null; { echo e >&2; } > f 2>&1; cat f",
    "redirect group": "{ echo a; echo b; } > f; cat f; for i in 1 2; do echo $i; done >> f; cat f",
    "redirect fd": "exec 3> f; echo three >&3; exec 3>&-; cat f; { echo x >&4; } 4>&1",
    "redirect function": "f() { echo in; echo err >&2; }; f 2>/dev/null; f > g 2>&1; cat g",
    "redirect order": "echo a > f 2>&1 && cat f; cat /nope 2>/dev/null; echo $?",
    "here": "x=v; cat <<EOF\n$x \"q\" $(echo s) \\$x \\\\ $((1+1)) 'z'\nEOF\n",
    "here quoted": "x=v; cat <<'EOF'\n$x `y` \\z\nEOF\n",
    "here tabs": "if true; then\n\tcat <<-EOF\n\tindented\n\t\tmore\n\tEOF\nfi\n",
    "here two": "cat <<A; cat <<B\na\nA\nb\nB\necho end",
    "here in substitution": 'v=$(cat <<EOF\nline $((2*3))\nEOF\n); echo "[$v]"',
    "here in function": "f() { cat <<EOF\n<$1>\nEOF\n}; f one; f 'two  2'",
    "globs": "mkdir d; : > d/a.txt; : > d/b.txt; : > d/.h; echo d/*.txt d/*; echo d/[ab]*; echo 'd/*' nope*; cd d; echo *; echo ?.txt",
    "globs dirs": "mkdir -p p/q p/r; : > p/q/x; echo p/*/x p/*/; echo */q",
    "no glob": "set -f; : > a; echo *; set +f; echo *",
    "tilde": "HOME=/h; echo ~ ~/x 'a~' a~ \"~\"; v=~/y; echo $v",
    "errexit": "(set -e; false; echo no); echo $?; (set -e; false || true; if false; then :; fi; ! true; echo yes); echo $?",
    "errexit function": "(set -e; f() { false; echo in; }; f || echo or; f; echo no); echo $?",
    "errexit pipe": "(set -e; false | true; echo a; true | false; echo no); echo $?",
    "errexit substitution": "(set -e; x=$(false); echo no); echo $?; (set -e; echo $(false) yes); echo $?",
    "nounset": "(set -u; echo ${x:-d}; echo $x; echo no) 2>/dev/null; [ $? -ne 0 ] && echo stopped",
    "set params": "set -- -x y; echo $1 $2; set a b; echo $#; set --; echo $#",
    "eval": "x='echo \"a  b\"'; eval \"$x\"; eval 'y=3'; echo $y; eval 'false'; echo $?",
    "exit": "(exit 300); echo $?; (trap 'echo bye' EXIT; exit 3); echo $?",
    "exit in substitution": "echo $(echo a; exit 2; echo b); f() { exit 6; }; (f; echo no); echo $?",
    "trap status": "(trap 'echo t$?' EXIT; false); echo $?; (trap 'x' EXIT; trap - EXIT; true); echo $?",
    "command v": "command -v cd; command -v nope-nope || echo none; f() { echo fn; }; command -v f; command echo plain",
    "unknown": "nope-nope 2>/dev/null; echo $?; ./nope 2>/dev/null; echo $?",
    "export": "export A=1; B=2; C=3 sh -c 'echo $A [$B] $C'; echo [$C]; unset A; sh -c 'echo [$A]'",
    "prefix function": "f() { echo $V; }; V=1 f; V=2; V=3 eval 'echo $V'",
    "env": "env -i X=1 sh -c 'echo $X [$HOME]'; env Y='a b' sh -c 'echo \"$Y\"'",
    "sh c": "sh -c 'echo $0 $1 $#' name a b; printf 'echo in\\nexit 4\\n' | sh; echo $?; echo 'echo $1' | sh -s -- q",
    "test": "[ a = a ] && [ a != b ] && [ -n x ] && [ -z '' ] && [ 2 -gt 1 ] && echo ok; [ ]; echo $?; [ ! x ]; echo $?; [ x ] && echo x",
    "test files": "mkdir d; echo x > f; [ -d d ] && [ -f f ] && [ -e f ] && [ -s f ] && ! [ -e n ] && ! [ -d f ] && echo ok",
    "test words": "[ ! -e n ] && echo a; [ -f ] && echo b; [ '(' ] && echo c; [ ! = x ]; echo $?; test -n 'a b' && echo d",
    "test number": "[ 1 -eq x ] 2>/dev/null; echo $?; [ 07 -eq 7 ] && echo seven",
    "printf": "printf '%s-%d-%5s|%-5s|%05d|%x|%o|%%|%c\\n' a 42 b c 7 255 8 hello",
    "printf again": "printf '%s %s\\n' a b c; printf 'x\\ty\\n\\101\\n'; printf '%b|%s\\n' 'a\\tb' 'a\\tb'; printf '%.2s\\n' abc; printf 'no newline'; echo",
    "printf missing": "printf '%s|%d|\\n'; printf '%s\\n'",
    "cd": 'mkdir -p a/b; cd a/b; basename "$(pwd)"; cd ..; basename "$PWD"; cd - >/dev/null; basename "$PWD"; cd /nope 2>/dev/null || echo no',
    "umask": "umask 077; : > f; mkdir d; stat -c %a f d; umask",
    "files": "mkdir -p -m 700 x; stat -c %a x; : > a; mv a b; cp b c; ls; rm b c; ls; rm nope 2>/dev/null; echo $?; rm -f nope; echo $?; mkdir x 2>/dev/null; echo $?; rmdir x",
    "move": "mkdir d e; echo 1 > d/f; mv d/f e; cat e/f; mv e/f d/g; ls d; mv d n; ls; mv nope x 2>/dev/null; echo $?; echo a > p; echo b > q; mv -f p q; cat q",
    "links": "echo t > t; ln -s t l; cat l; readlink l; [ -L l ] && [ -f l ] && echo both; rm l; ls; readlink nope; echo $?",
    "chmod": "echo x > f; chmod 600 f; stat -c '%a %s' f; chmod u+x,g=r f; stat -c %a f; [ -x f ] && echo x; touch g; ls",
    "text": "printf 'b\\na\\nb\\nc\\n' > f; sort f | uniq; sort -u f; sort f | uniq -c | tr -s ' '; head -n 2 f; tail -n 1 f; tail -n +3 f; head -c 3 f; head -1 f; wc -l < f | tr -d ' '",
    "sort": "printf '10 a\\n9 b\\n-1 c\\n' | sort -n; printf '10 a\\n9 b\\n' | sort -rn; printf 'x 3\\ny 1\\n' | sort -k2n; printf 'a:2\\nb:1\\n' | sort -t: -k2",
    "grep": "printf 'foo\\nBar\\nfoobar\\n' > f; grep foo f; grep -c foo f; grep -v foo f; grep -i BAR f; grep -x foo f; grep -q nope f; echo $?; grep -F 'o.b' f; echo $?; grep -E '^(foo|Bar)$' f; grep '^foo*$' f; grep -n Bar f; grep -o 'o*b' f",
    "grep basic": "printf 'a+b\\naab\\n(x)\\n' > f; grep 'a+b' f; grep -E 'a+b' f; grep '(x)' f; grep 'a\\{2\\}' f; grep '[[:space:]]' f; echo $?; grep x /nope 2>/dev/null; echo $?",
    "cut": "printf 'a:b:c\\nnone\\n' | cut -d: -f2; printf 'a:b:c\\n' | cut -d: -f1,3; printf 'a:b:c\\n' | cut -d: -f2-; printf 'hello\\n' | cut -c1-3; printf 'x\\n' | cut -s -d: -f1",
    "tr": "echo Hello | tr a-z A-Z; echo a1b2 | tr -d '0-9'; echo aabb | tr -s a; printf 'a\\nb\\n' | tr '\\n' ' '; echo; echo x-y | tr -cd 'a-z\\n'; echo AbC | tr '[:upper:]' '[:lower:]'",
    "wc": "printf 'a b\\nc\\n' | wc -c | tr -d ' '; printf 'a b\\nc' | wc -w | tr -d ' '; printf 'x' > f; wc -c f",
    "names": "basename /a/b.txt .txt; basename /a/b/; dirname /a/b; dirname a; dirname /a; dirname /",
    "base64": "printf 'hello \\001\\377' | base64; printf 'aGVsbG8=\\n' | base64 -d; echo; printf 'hello' | base64 | base64 -d; echo; head -c 100 /dev/zero 2>/dev/null | wc -c | tr -d ' ' > /dev/null; printf 'not base64!' | base64 -d >/dev/null 2>&1; echo $?",
    "digest": "printf abc | sha256sum; printf abc > f; sha256sum f; sha256sum f > s; sha256sum -c s; echo bad > f; sha256sum -c s >/dev/null 2>&1; echo $?",
    "seq tee": "seq 3; seq 2 4; seq 5 -2 1; echo x | tee f; cat f; echo y | tee -a f >/dev/null; cat f",
    "date": "date -u -d @1700000000 +%Y-%m-%dT%H:%M:%SZ; date -u -d @0 '+%F %T'",
    "background": "true & wait $!; echo $?; (exit 3) & wait $!; echo $?; { sleep 30; echo no; } >/dev/null 2>&1 & kill $!; echo $?",
    "kill": "kill -0 $$ && echo alive; kill -0 999999999 2>/dev/null; echo $?",
    "nested quotes": "echo \"$(printf '%s' \"a \\\"b\\\" c\")\" '\"' \"'\"; x='it'\\''s'; echo \"$x\"",
    "dollar literal": "echo $ \"$\" a$ '$x' $% 2>/dev/null; echo \"a$\"",
    "semicolons": "echo a;echo b; if true;then echo c;fi;for i in 1;do echo $i;done;{ echo d;}",
    "newlines": "echo a &&\n\necho b ||\necho c\ntrue |\ncat\nif\ntrue\nthen\necho d\nfi\n",
    "syntax error": "echo before\nif true; then\n",
    "late syntax error": "echo one\necho two; )\n",
    "unterminated": "echo 'abc\n",
    "shift two": "set -- a b; shift 2; echo $#",
    "long": 'v=; i=0; while [ $i -lt 200 ]; do v="$v x$i"; i=$((i+1)); done; set -- $v; echo $# ${200}',
    "dot": "echo 'x=9; echo sourced $1' > lib; . ./lib; echo $x",
    "true utilities": "/bin/true; echo $?; /bin/echo hi; env printf '%s\\n' p; env false; echo $?",
    "timeout": "timeout 5 echo fast; timeout 0.05 sleep 2; echo $?; timeout 5 sh -c 'exit 9'; echo $?; timeout -k 1 5 true; echo $?",
    "exec": "(exec echo replaced; echo no); (exec sh -c 'exit 8'); echo $?",
    "type": "type nope-nope >/dev/null 2>&1 || echo none; type cd",
    "lock": "mkdir lease 2>/dev/null && echo got; mkdir lease 2>/dev/null || echo held; echo me > lease/holder; cat lease/holder; rm -rf lease; [ -e lease ] || echo free",
    "atomic write": "umask 077; printf '%s' content > .t.$$ && sync && mv -f .t.$$ final && cat final; ls -A",
    "unset": "x=1; unset x; echo [${x-unset}]; f() { :; }; unset -f f; f 2>/dev/null; echo $?",
    "backslash newline in word": "ec\\\nho joi\\\nnt",
    "carriage": "printf 'a\\r\\n' | tr -d '\\r' | cat",
    "assignment order": "a=1 b=$a; echo [$b]; x=$(echo 1) y=2; echo $x$y; a=$a$a; echo $a",
    "empty command": "$(true); echo $?; x=; $x; echo $?; $x echo hi",
    "cat stdin": "printf 'one\\ntwo\\n' | { read -r first; cat; }",
    "negated pipeline": "if ! echo abc | grep -q b; then echo no; else echo yes; fi",
}  # fmt: skip


def _real(shell: str, script: str, folder) -> tuple[int, bytes]:
    ended = subprocess.run(
        [shell, "-s"],
        input=script.encode(),
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "LC_ALL": "C"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_lab_shell_answers_as_real_shells_do(name, tmp_path):
    assert SHELLS
    host = bare_host()
    ours = run_shell(host, SCRIPTS[name], env={"LC_ALL": "C"})
    for shell in SHELLS:
        folder = tmp_path / shell.rpartition("/")[2]
        folder.mkdir()
        code, stdout = _real(shell, SCRIPTS[name], folder)
        assert (ours.stdout.decode("latin-1"), ours.code) == (stdout.decode("latin-1"), code), (
            shell,
            ours.stderr,
        )


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
def test_quoted_arguments_arrive_as_they_are(arguments):
    words = " ".join(shlex.quote(argument) for argument in arguments)
    ended = run_shell(bare_host(), f"set -- {words}\nprintf '%s\\0' \"$@\"\necho $#")
    *values, count = ended.stdout.decode().split("\0") if arguments else ("", ended.stdout.decode()[1:])
    assert int(count) == len(arguments)
    if arguments:
        assert values == arguments


@pytest.mark.parametrize(
    "script",
    [
        "echo `id`", "[[ a = b ]]", "echo ${v/a/b}", "echo ${v:1:2}", "cat <<< x", "echo a &> f", "a=(1 2)",
        "echo $'a'", "echo \"${v:-it's}\"", "diff <(echo) x", "sed s/a/b/", "awk 1", "python3 -c 1", "function f { :; }", "echo -e x",
        "echo 'a\\nb'", "[ a == b ]", "[ a = a -a b = b ]", "set -x", "((1+1))", "ls --color", "source x", "while :; do :; done",
    ],
)  # fmt: skip
def test_what_lies_outside_the_dialect_is_refused_loudly(script):
    ended = run_shell(bare_host(), script)
    assert ended.code == 2
    assert b"lab sh: unsupported: " in ended.stderr
