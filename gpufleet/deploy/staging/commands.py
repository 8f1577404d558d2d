"""What is sent to a host to fetch weights into its store, to look at them, and to tidy up after a broken copy.

A store holds one directory for each revision of a model. A copy grows in `NAME.partial`: each file first below
`.incoming`, and in its place once its size and checksum are right, so that a copy that was cut goes on where it
was. The manifest lies inside, and one rename makes the directory appear whole. `NAME.lease` is a directory, made by
`mkdir`, which is atomic on every file system, while `flock` is a no-op on many shared ones: whoever makes it is the
writer. A writer of the same machine is known to be dead by its process; one of another machine when nothing moved
in the partial directory for `patience` seconds of the waiter's own counting, so that clocks need not agree.

Addresses and headers reach curl on its standard input. A header goes to the origin it is meant for and to no other:
redirects are followed by the script, not by curl. A file of the operator's machine is asked for at the byte that is
missing (`remote.offer`), and arrives on standard input.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from gpufleet.deploy.staging.model import MANIFEST, Fetch
from gpufleet.deploy.staging.patient import PATIENTLY
from gpufleet.deploy.staging.stores import COMMON
from gpufleet.redact import Secret
from gpufleet.remote.command import Command

STALL = 300
"""Seconds without a byte after which a transfer is given up."""

PATIENCE = 600
"""Seconds without movement after which a writer of another machine counts as dead."""

SLOWEST = 2 << 20
"""Bytes a second that a transfer may be expected to reach in all; its deadline follows from it."""

FETCH = (
    """
umask 022
final=$1 owner=$2 stall=$3 patience=$4 mode=$5 near_manifest=$6
shift 6
near_sums=
store=${final%/*}
partial=$final.partial
lease=$final.lease
"""
    + COMMON
    + PATIENTLY
    + """
me="$machine $$ $(born "$$") $owner"
mine() { [ "$(cat "$lease/holder" 2>/dev/null)" = "$me" ]; }
leave() {
  if mine; then rm -rf "$lease"; fi
  exit "$1"
}
size_of() { stat -c %s "$1" 2>/dev/null || echo 0; }
origin() {
  rest=${1#*://}
  printf '%s://%s' "${1%%://*}" "${rest%%[/?#]*}"
}
refused= near_off= desk_off=
ask_where() {
  target=$1 bearer=$2 hops=0
  while [ "$hops" -lt 6 ]; do
    answer=$(
      { printf 'url = "%s"\\n' "$target"; [ -z "$bearer" ] || printf 'header = "%s"\\n' "$bearer"; } |
        curl -q -s -g -I -o /dev/null -w '%{http_code} %{redirect_url}' --connect-timeout 30 -m 120 -K - 2>/dev/null
    )
    case $answer in
    30[12378]' '?*)
      next=${answer#* }
      if [ "$(origin "$next")" != "$(origin "$target")" ]; then bearer=; fi
      case $target in https://*) case $next in http://*) refused="redirects to an address without TLS"; return 1 ;; esac ;; esac
      target=$next hops=$((hops + 1)) ;;
    *) return 0 ;;
    esac
  done
  refused="redirects more than six times"
  return 1
}
bring() {
  refused= again=yes
  have=$(size_of "$incoming")
  if [ "$have" -gt "$size" ]; then rm -f "$incoming"; have=0; fi
  if [ "$have" -eq "$size" ] && [ -f "$incoming" ]; then return 0; fi
  if [ "$size" -eq 0 ]; then : >"$incoming"; return $?; fi
  case $1 in
  /*)
    again=
    silent="$1 gives no byte for $stall s: is it on a mount whose server is gone?"
    patiently "$stall" /dev/null stat -L -c %s "$1"
    if [ "$?" -eq 124 ]; then refused=$silent; return 1; fi
    before=$(stat -L -c '%s %Y' "$1" 2>/dev/null) || before=
    if [ -z "$before" ] || [ ! -r "$1" ]; then refused="cannot be read: $1"; return 1; fi
    case $check in mtime:*) listed="$size ${check#mtime:}" ;; *) listed="$size ${before#* }" ;; esac
    if [ "$before" != "$listed" ]; then refused="$1 changed since it was listed: somebody writes there"; return 1; fi
    patiently "$stall" "$incoming" tail -c "+$((have + 1))" "$1"
    case $? in
    0) ;;
    124) refused=$silent; return 1 ;;
    *) refused="cannot be copied: is the disk of $store full?"; return 1 ;;
    esac
    if [ "$(stat -L -c '%s %Y' "$1" 2>/dev/null)" = "$before" ]; then return 0; fi
    rm -f "$incoming"
    refused="$1 changed while it was copied: somebody writes there"
    return 1 ;;
  desk:*)
    again=
    if [ -n "$desk_off" ]; then refused=$desk_off; return 1; fi
    gpufleet_want "${1#desk:}" "$have" "$((size - have))"
    if head -c "$((size - have))" >>"$incoming" 2>/dev/null; then
      if [ "$(size_of "$incoming")" -eq "$size" ]; then return 0; fi
      refused="the operator's machine gave $(size_of "$incoming") of $size bytes"
    else
      refused="cannot be written to $store: is its disk full?"
    fi
    desk_off=$refused; return 1 ;;
  esac
  target=$1 bearer=$2 patient=30 begun=$(date +%s)
  if [ -n "$3" ]; then patient=5; fi
  if [ "$bearer" = follow ]; then bearer=; fi
  if [ -n "$2" ]; then ask_where "$1" "$bearer" || { again=; return 1; }; fi
  code=$(
    { printf 'url = "%s"\\n' "$target"; [ -z "$bearer" ] || printf 'header = "%s"\\n' "$bearer"; [ -z "$3" ] || printf 'noproxy = "*"\\n'; } |
      curl -q -s -g -f -C - -o "$incoming" -w '%{http_code}' --connect-timeout "$patient" --speed-limit 1 --speed-time "$stall" -K - 2>/dev/null
  )
  status=$?
  case $status in
  0)
    case $code in
    2*) return 0 ;;
    esac
    rm -f "$incoming"
    refused="HTTP $code from $(origin "$target")" again= ;;
  22)
    refused="HTTP $code from $(origin "$target")"
    case $code in
    401|403|404|410) again= ;;
    416) rm -f "$incoming" ;;
    esac ;;
  23) refused="cannot be written to $store: is its disk full?" again= ;;
  28)
    refused="no answer, or no byte for $stall s, from $(origin "$target")"
    [ "$(($(date +%s) - begun))" -lt "$stall" ] || again=
    if [ -n "$3" ]; then near_off=yes again=; fi ;;
  33) rm -f "$incoming"; refused="$(origin "$target") cannot resume" ;;
  6|7)
    refused="$(origin "$target") is not reached"
    if [ -n "$3" ]; then near_off=yes again=; fi ;;
  60|77) refused="the certificate of $(origin "$target") is not trusted by this host" again= ;;
  127) refused="curl: not found on this host" again= ;;
  *) refused="$(origin "$target") broke off (curl status $status)" ;;
  esac
  return 1
}
digest_of() { exec sha256sum <"$1"; }
told_near() {
  if [ -z "$near_sums" ]; then
    near_sums=$(printf 'url = "%s"\\nnoproxy = "*"\\n' "$near_manifest" | curl -q -s -g -f --connect-timeout 5 -m 60 -K - 2>/dev/null)
  fi
  printf '%s\\n' "$near_sums" | grep -F "  $path" | while read -r digest name; do
    if [ "$name" = "$path" ]; then echo "$digest"; fi
  done
}
checked() {
  have=$(size_of "$incoming")
  if [ "$have" != "$size" ]; then wrong="has $have bytes, not $size"; return 1; fi
  sum=$(sha256sum <"$incoming") || { wrong="cannot be read back"; return 1; }
  sum=${sum%% *}
  case $check in
  sha256:*)
    if [ "sha256:$sum" != "$check" ]; then wrong="has SHA-256 $sum, and the source tells ${check#*:}"; return 1; fi ;;
  git:*)
    blob=$({ printf 'blob %s\\0' "$size"; cat "$incoming"; } | sha1sum)
    if [ "git:${blob%% *}" != "$check" ]; then wrong="is not the blob ${check#*:} that the source tells"; return 1; fi ;;
  *)
    if [ -f "$partial/.former" ] && ! grep -q -F -x "$sum  $path" "$partial/.former"; then
      wrong="has SHA-256 $sum, which is not in the manifest"
      return 1
    fi
    # Nobody told a checksum: a directory is read once more, a neighbour tells what it wrote itself.
    case $from in
    '') told=$sum ;;
    /*)
      rm -f "$incoming.sum"
      patiently "$((stall + size / 2097152))" "$incoming.sum" digest_of "$from"
      if [ "$?" -eq 124 ]; then wrong="cannot be compared: $from does not answer"; return 1; fi
      told=$(cat "$incoming.sum")
      rm -f "$incoming.sum" ;;
    "$near") told=$(told_near) ;;
    *) told=$sum ;;
    esac
    if [ "${told%% *}" != "$sum" ]; then wrong="has SHA-256 $sum, and $from has ${told%% *}"; return 1; fi ;;
  esac
  return 0
}
settle() {
  sync "$incoming" 2>/dev/null || :
  printf '%s  %s\\n' "$sum" "$path" >>"$partial/$manifest" && mv -f "$incoming" "$partial/$path" || {
    say "$path: cannot be written to $store: is its disk full?"
    leave 1
  }
}
fetch() {
  incoming=$partial/.incoming/$path
  case $path in */*) folder=/${path%/*} ;; *) folder= ;; esac
  mkdir -p "$partial$folder" "$partial/.incoming$folder" 2>/dev/null || {
    say "$partial cannot be written: is its disk full?"
    leave 1
  }
  if [ -n "$near_off" ] && [ -n "$far" ]; then near=; fi
  tries=0 bad=0 got=0 from=$near
  if [ -z "$from" ]; then from=$far; fi
  while :; do
    if mine; then :; else say "another writer took over $partial"; exit 1; fi
    if [ "$from" = "$near" ]; then bring "$from" '' near; else bring "$from" "$header" ''; fi
    if [ $? -eq 0 ]; then
      if checked; then settle; return 0; fi
      rm -f "$incoming"
      refused="it $wrong" again=yes got=0 bad=$((bad + 1))
      if [ "$bad" -ge 2 ]; then again=; fi
    fi
    now=$(size_of "$incoming")
    if [ -n "$again" ] && [ "$now" -gt "$got" ]; then got=$now tries=0; continue; fi
    tries=$((tries + 1))
    if [ -n "$again" ] && [ "$tries" -lt 3 ]; then sleep "$tries"; continue; fi
    if [ "$from" = "$near" ] && [ -n "$far" ] && [ "$far" != "$near" ]; then
      from=$far tries=0 bad=0 got=0
      continue
    fi
    say "$path: $refused"
    leave 1
  done
}
repair() {
  if (cd "$final" && sha256sum -c "$manifest" >/dev/null 2>&1); then return 1; fi
  mv "$final" "$partial" || return 2
  mv -f "$partial/$manifest" "$partial/.former"
}
if [ -f "$final/$manifest" ] && [ "$mode" != verify ]; then exit 0; fi
if [ -e "$final" ] && [ ! -f "$final/$manifest" ]; then
  say "$final is there and has no manifest of ours: move it away"
  exit 1
fi
mkdir -p "$store" 2>/dev/null || { say "$store cannot be made: who may write there?"; exit 1; }
still=0 before= odd=0
while ! mkdir "$lease" 2>/dev/null; do
  if [ -f "$final/$manifest" ] && [ "$mode" != verify ]; then exit 0; fi
  if [ ! -d "$lease" ]; then
    odd=$((odd + 1))
    if [ "$odd" -ge 3 ]; then say "$store cannot be written: is its disk full, or not ours?"; exit 1; fi
  fi
  held=$(cat "$lease/holder" 2>/dev/null)
  now=$(du -sk "$partial" 2>/dev/null; cat "$lease/beat" 2>/dev/null; printf '%s' "$held")
  if [ "$now" != "$before" ]; then before=$now still=0; fi
  if dead_writer || [ "$still" -ge "$patience" ]; then
    if mv "$lease" "$lease.$$" 2>/dev/null; then
      if [ "$(cat "$lease.$$/holder" 2>/dev/null)" = "$held" ]; then rm -rf "$lease.$$"; else mv "$lease.$$" "$lease"; fi
    fi
    continue
  fi
  sleep 2
  still=$((still + 2))
done
printf '%s\\n' "$me" >"$lease/holder" || { rm -rf "$lease"; say "$store cannot be written: is its disk full?"; exit 1; }
if [ -f "$final/$manifest" ]; then
  if [ "$mode" != verify ]; then leave 0; fi
  repair
  case $? in
  1) leave 0 ;;
  2) say "$final cannot be moved to be repaired"; leave 1 ;;
  esac
fi
while [ "$#" -gt 0 ]; do
  path=$1 size=$2 check=$3 near=$4 far=$5 header=$6
  shift 6
  from=
  printf '%s\\n' "$path" >"$lease/beat" 2>/dev/null
  if [ -f "$partial/$path" ]; then
    if [ ! -f "$partial/.former" ]; then continue; fi
    incoming=$partial/.incoming/$path
    case $path in */*) mkdir -p "$partial/.incoming/${path%/*}" ;; *) mkdir -p "$partial/.incoming" ;; esac
    mv "$partial/$path" "$incoming"
    if checked; then settle; continue; fi
    rm -f "$incoming"
  fi
  fetch
done
if mine; then :; else say "another writer took over $partial"; exit 1; fi
rm -rf "$partial/.incoming" "$partial/.former"
sync "$partial/$manifest" 2>/dev/null || :
mv "$partial" "$final" || { say "$partial cannot be renamed"; leave 1; }
sync "$store" 2>/dev/null || :
leave 0
"""
)

TIDY = (
    """
final=$1 owner=$2
partial=$final.partial
lease=$final.lease
"""
    + COMMON
    + """
if [ -d "$lease" ]; then
  name= pid= since= rest=
  read -r name pid since rest 2>/dev/null <"$lease/holder"
  if [ "$rest" != "$owner" ] && ! dead_writer; then exit 0; fi
  rm -rf "$lease"
fi
rm -rf "$partial"
"""
)


def fetch(
    final: str,
    owner: str,
    fetches: Sequence[Fetch],
    *,
    near: str | Secret[str] = "",
    mode: str = "stage",
    become: bool = False,
    stall: int = STALL,
    patience: int = PATIENCE,
) -> Command:
    """Bring a revision whole into its directory; `near` is the base address of a host that has it.

    `owner` names run and step. With mode `verify` what is there is read again, and what is damaged fetched again.
    """
    words: list[str | Secret[str]] = [final, owner, str(stall), str(patience), mode, _near(near, MANIFEST)]
    here = tuple(dict.fromkeys(one.here for one in fetches if one.here))
    for one in fetches:
        words += [
            one.file.path,
            str(one.file.size),
            one.file.check,
            _near(near, one.file.path),
            f"desk:{here.index(one.here)}" if one.here else one.url,
            one.header if one.header is not None else "follow" if one.redirects else "",
        ]
    size = sum(one.file.size for one in fetches)
    timeout = 2.0 * patience + 3 * stall + size / SLOWEST
    return Command(argv=tuple(words), script=FETCH, mutates=True, timeout=timeout, become=become, files=here)


def _near(base: str | Secret[str], path: str) -> str | Secret[str]:
    if not isinstance(base, Secret):
        return f"{base}/{quote(path)}" if base else ""
    return Secret(f"{base.reveal()}/{quote(path)}", reference=f"{base.reference}/{quote(path)}")


def tidy(final: str, owner: str, *, become: bool = False) -> Command:
    """Take away what a broken copy of ours left; what is whole stays, and so does what another writes."""
    return Command(argv=(final, owner), script=TIDY, mutates=True, timeout=300.0, become=become)
