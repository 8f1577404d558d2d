"""Plans: what stays, comes and goes, in which order, and what each step would undo."""

from dataclasses import replace
from typing import Any

import pytest

from gpufleet.change.records import document
from gpufleet.deploy import diff
from gpufleet.deploy.fingerprint import fingerprint
from gpufleet.deploy.plan import Wish, make, spec_of
from gpufleet.deploy.replicas import open_hosts
from gpufleet.engine.vllm import Vllm
from gpufleet.errors import DocumentError, Unplaceable
from gpufleet.hosts.model import Known, Unknown
from gpufleet.inventory.model import Address, Host, PortRange
from gpufleet.names import HostName, PoolName, RunId
from gpufleet.pools.model import EngineWish, Limits, Pool, SliceWish
from gpufleet.redact import Secret
from tests.kit import fleet_facts as facts

KEY = Secret("gfk-0123456789abcdef", reference="${file:/state/keys/chat}")
TOKEN = Secret("hf_abcdefghijklmnopqrst", reference="${env:HF_TOKEN}")


def declared(name, address="10.0.0.1", **changes):
    return Host(name=HostName(name), address=Address(address), ports=PortRange(8000, 8099), **changes)


def pool(**changes):
    fields: dict[str, Any] = {
        "name": PoolName("chat"),
        "model": "qwen/qwen2.5",
        "replicas": 2,
        "engine": EngineWish(image="vllm/vllm-openai:v0.11.0", env={"HF_TOKEN": TOKEN}),
    }
    return Pool(**(fields | changes))


def wish(chosen=None, run="20260101T000000-abc123", revision=1):
    return Wish(
        pool=chosen or pool(),
        run=RunId(run),
        revision=revision,
        engine=Vllm(),
        key=KEY,
        command="pool deploy",
    )


def planned(hosts, chosen=None, **changes):
    seen = {host.host: host for host in hosts}
    names = [declared(host.host, f"10.0.0.{number}") for number, host in enumerate(hosts, 1)]
    return make(wish(chosen, **changes), names, seen)


def deployed(host, number=0, *, gpu=0, port=8000, spec=None, state="running", **labels):
    """A container as a former deploy left it."""
    spec = spec or spec_of(wish())
    return facts.container(
        f"gf-chat-{number}-0ld{host}",
        state=state,
        devices=[f"GPU-{host}-{gpu}"],
        ports=[port],
        labels={
            "gpufleet.pool": "chat",
            "gpufleet.replica": f"{host}/{number}",
            "gpufleet.spec": spec,
            "gpufleet.revision": "1",
            "gpufleet.slice": f"GPU-{host}-{gpu}",
            **labels,
        },
    )


def by_phase(plan, phase):
    return [step for step in plan.steps if step.phase == phase]


def test_a_first_deploy_pulls_starts_asks_and_settles_on_each_host():
    plan = planned([facts.host("a"), facts.host("b")])
    assert [step.phase for step in plan.bring_up.steps] == [
        "pull",
        "pull",
        "start",
        "start",
        "gate",
        "gate",
        "settle",
        "settle",
    ]
    assert not plan.gone
    assert [(one.replica, one.url, one.gpus) for one in plan.endpoints] == [
        ("a/0", "http://10.0.0.1:8000", ("GPU-a-0",)),
        ("b/0", "http://10.0.0.2:8000", ("GPU-b-0",)),
    ]


def test_nothing_starts_before_every_host_has_the_image_and_nothing_settles_before_every_gate():
    plan = planned([facts.host("a"), facts.host("b")]).bring_up
    pulls = {step.id for step in by_phase(plan, "pull")}
    gates = {step.id for step in by_phase(plan, "gate")}
    assert all(pulls <= step.after for step in by_phase(plan, "start"))
    assert all(gates <= step.after for step in by_phase(plan, "settle"))
    assert all(step.after == {f"start-{step.host}-0"} for step in by_phase(plan, "gate"))


def test_the_start_is_an_exact_argument_vector_with_the_gpu_by_uuid():
    (start,) = by_phase(planned([facts.host("a")], pool(replicas=1)).bring_up, "start")
    words = [str(word) for word in start.do[0].argv]
    assert words[words.index("--gpus") + 1] == '"device=GPU-a-0"'
    assert words[words.index("-p") + 1] == "10.0.0.1:8000:8000"
    assert words[words.index("--restart") + 1] == "on-failure:3"
    assert words[words.index("--entrypoint") + 1 :][:4] == [
        "vllm",
        "vllm/vllm-openai:v0.11.0",
        "serve",
        "qwen/qwen2.5",
    ]
    assert "gpufleet.run=20260101T000000-abc123" in words
    assert "--shutdown-timeout" not in words
    assert start.do[0].mutates
    assert not start.verify.look.mutates


def test_podman_is_given_cdi_devices():
    runtime = replace(facts.host("a").runtime.value, kind="podman", version="4.3.1", path="/usr/bin/podman")
    named = Known(("nvidia.com/gpu=GPU-a-0", "nvidia.com/gpu=0", "nvidia.com/gpu=all"))
    plan = planned([facts.host("a", runtime=Known(runtime), cdi_devices=named)], pool(replicas=1)).bring_up
    (start,) = by_phase(plan, "start")
    words = [str(word) for word in start.do[0].argv]
    assert words[words.index("--device") + 1] == "nvidia.com/gpu=GPU-a-0"
    assert "--gpus" not in words
    assert "gpufleet.devices=GPU-a-0" in words
    assert words[words.index("--restart") + 1] == "always"
    assert not by_phase(plan, "settle")


def test_secrets_are_arguments_that_show_nothing_and_are_journaled_by_reference():
    plan = planned([facts.host("a")], pool(replicas=1)).bring_up
    stored = document.encode_plan(plan)
    shown = " ".join(command.shown() for step in plan.steps for command in (*step.do, step.verify.look))
    for secret in (KEY, TOKEN):
        assert secret.reveal().encode() not in stored
        assert secret.reference.encode() in stored
        assert secret.reveal() not in shown
    assert document.decode_plan(stored, {KEY.reference: KEY, TOKEN.reference: TOKEN}.__getitem__) == plan


def test_the_same_again_is_no_change():
    hosts = [facts.host("a", containers=[deployed("a")]), facts.host("b", containers=[deployed("b")])]
    plan = planned(hosts)
    assert not plan.changes
    assert not plan.bring_up.steps
    assert [one.url for one in plan.endpoints] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]


def test_a_replica_more_is_started_beside_those_that_stay():
    hosts = [facts.host("a", containers=[deployed("a")]), facts.host("b", containers=[deployed("b")])]
    plan = planned(hosts, pool(replicas=3))
    assert [one.replica for one in plan.keep] == ["a/0", "b/0"]
    assert [(one.replica, one.port) for one in plan.start] == [("a/1", 8001)]
    assert not plan.gone


def test_a_replica_less_is_removed_after_the_commit():
    hosts = [facts.host("a", containers=[deployed("a")]), facts.host("b", containers=[deployed("b")])]
    plan = planned(hosts, pool(replicas=1))
    assert not plan.bring_up.steps
    assert [one.replica for one in plan.gone] == ["b/0"]


def test_another_image_goes_alongside_where_there_is_room():
    host = facts.host("a", gpus=2, containers=[deployed("a", spec="other")])
    plan = planned([host], pool(replicas=1))
    assert not by_phase(plan.bring_up, "stop")
    assert plan.start[0].placed.slots[0].index == 1
    assert len(plan.gone) == 1


def test_without_room_the_old_is_stopped_and_kept_and_the_undo_starts_it_again():
    old = deployed("a", spec="other")
    plan = planned([facts.host("a", gpus=1, containers=[old])], pool(replicas=1))
    (stop,) = by_phase(plan.bring_up, "stop")
    (start,) = by_phase(plan.bring_up, "start")
    assert stop.id in start.after
    assert old.id in stop.undo[0].argv
    assert "always" in stop.undo[0].argv
    assert "running,restarting" in stop.absent.data
    assert plan.start[0].port == 8001
    assert plan.gone[0].container == old


def test_only_what_is_in_the_way_is_stopped_first():
    first, second = deployed("a", 0, gpu=0, spec="other"), deployed("a", 1, gpu=1, port=8001, spec="other")
    plan = planned([facts.host("a", gpus=2, containers=[first, second])], pool(replicas=1))
    assert plan.stopped_first == {first.id}
    assert len(plan.gone) == 2


def test_a_crashed_replica_is_replaced_on_its_own_gpu():
    plan = planned([facts.host("a", gpus=1, containers=[deployed("a", state="exited")])], pool(replicas=1))
    assert [one.replica for one in plan.start] == ["a/0"]
    assert not by_phase(plan.bring_up, "stop")
    assert len(plan.gone) == 1


def test_containers_of_others_are_never_touched():
    other = facts.container("somebody", devices=["GPU-a-0"])
    plan = planned([facts.host("a", gpus=2, containers=[other])], pool(replicas=1))
    touched = {word for step in plan.bring_up.steps for command in step.do for word in command.argv}
    assert other.id not in touched
    assert plan.start[0].placed.slots[0].index == 1


def test_too_few_gpus_is_refused_with_every_reason_and_the_nearest_that_fits():
    other = facts.container("somebody", devices=["GPU-a-0"])
    with pytest.raises(Unplaceable) as caught:
        planned(
            [facts.host("a", gpus=2, containers=[other]), facts.host("b", gpus=Unknown("no answer"))],
            pool(replicas=3),
        )
    error = caught.value
    assert error.exit == 4
    assert "wants 3" in error.summary
    assert "1 fit" in error.summary
    assert {row.where: row.message for row in error.rows} == {
        "a": "GPU 0: container somebody holds it",
        "b": "GPUs: could not be read: no answer",
    }
    assert "--replicas 1" in error.hints[0]


def test_two_gpus_a_replica_are_of_one_host():
    plan = planned(
        [facts.host("a", gpus=3), facts.host("b", gpus=3)], pool(replicas=2, slice=SliceWish(gpus=2))
    )
    (start, _) = by_phase(plan.bring_up, "start")
    words = [str(word) for word in start.do[0].argv]
    assert words[words.index("--gpus") + 1] == '"device=GPU-a-0,GPU-a-1"'
    assert words[words.index("--tensor-parallel-size") + 1] == "2"


def test_a_slice_is_named_by_its_own_uuid_and_labelled_by_gpu_profile_and_place():
    gpus = [facts.gpu("a", 0, instances=[facts.mig_slice("a", 0, 0), facts.mig_slice("a", 0, 1)])]
    plan = planned([facts.host("a", gpus=gpus)], pool(replicas=2, slice=SliceWish(mig="3g.40gb")))
    first, second = by_phase(plan.bring_up, "start")
    words = [str(word) for word in second.do[0].argv]
    assert words[words.index("--gpus") + 1] == '"device=MIG-a-0-1"'
    assert "gpufleet.slice=GPU-a-0 3g.40gb 4" in words
    assert first.id != second.id


def test_flags_that_gpufleet_sets_are_refused():
    with pytest.raises(DocumentError, match="--port"):
        planned([facts.host("a")], pool(engine=EngineWish(image="x", args=("--port=1",))))


def test_the_fingerprint_moves_with_containers_and_boots_and_not_with_load():
    before = {HostName("a"): facts.host("a")}
    assert fingerprint(before) == fingerprint(
        {HostName("a"): facts.host("a", gpus=[facts.gpu("a", 0, used=900), facts.gpu("a", 1)])}
    )
    assert fingerprint(before) != fingerprint(
        {HostName("a"): facts.host("a", containers=[facts.container("x")])}
    )
    assert fingerprint(before) != fingerprint({HostName("a"): facts.host("a", boot_id=Known("b1"))})


def test_ipv6_and_names_as_addresses():
    seen = {HostName("a"): facts.host("a")}
    six = make(wish(pool(replicas=1)), [declared("a", "fd00::5")], seen)
    words = [str(word) for word in by_phase(six.bring_up, "start")[0].do[0].argv]
    assert words[words.index("-p") + 1] == "[fd00::5]:8000:8000"
    assert six.endpoints[0].url == "http://[fd00::5]:8000"
    named = make(wish(pool(replicas=1)), [declared("a", "gpu.example")], seen)
    words = [str(word) for word in by_phase(named.bring_up, "start")[0].do[0].argv]
    assert words[words.index("-p") + 1] == "8000:8000"
    assert named.endpoints[0].url == "http://gpu.example:8000"


def test_the_diff_names_what_comes_stays_and_goes():
    plan = planned(
        [facts.host("a", gpus=1, containers=[deployed("a", spec="other")]), facts.host("b")], pool(replicas=3)
    )
    text = "\n".join(diff.lines(plan))
    assert "+ b/0  GPU 0  http://10.0.0.2:8000" in text
    assert "stopped first" in text
    assert {row["status"] for row in diff.rows(plan)} == {"starts", "goes"}


def shared(**changes):
    return pool(slice=SliceWish(share=50), **changes)


def test_replicas_that_share_a_gpu_reserve_their_part_and_start_one_after_the_other():
    plan = planned([facts.host("a", gpus=1)], shared())
    first, second = by_phase(plan.bring_up, "start")
    for step in (first, second):
        words = [str(word) for word in step.do[0].argv]
        assert words[words.index("--gpu-memory-utilization") + 1] == "0.45"
        assert "gpufleet.share=50" in words
    assert "gate-a-0" in second.after
    assert not any(str(step).startswith("gate") for step in first.after)
    assert "50 % of GPU 0" in first.title


def test_replicas_on_gpus_of_their_own_start_together():
    for step in by_phase(planned([facts.host("a", gpus=2)]).bring_up, "start"):
        assert not any(str(before).startswith("gate") for before in step.after)
        assert not any(str(word).startswith("gpufleet.share") for word in step.do[0].argv)


def test_another_share_beside_one_that_runs():
    running = facts.container("embed", devices=["GPU-a-0"], labels={"gpufleet.share": "50"})
    plan = planned([facts.host("a", gpus=1, containers=[running])], shared(replicas=1))
    assert not plan.stopped_first
    with pytest.raises(Unplaceable) as caught:
        planned([facts.host("a", gpus=1, containers=[running])], shared(replicas=2))
    told: Any = caught.value.fields["nearest"]
    assert {"kind": "smaller-share", "share": 0.25} in [
        {key: value for key, value in row.items() if key != "text"} for row in told
    ]


def test_only_as_many_shares_make_room_as_must():
    old = [
        deployed("a", number, spec="other", port=8000 + number, **{"gpufleet.share": "50"})
        for number in range(2)
    ]
    plan = planned([facts.host("a", gpus=1, containers=old)], shared(replicas=1))
    assert len(plan.stopped_first) == 1
    assert len(plan.gone) == 2


def test_a_stopped_replica_of_the_pool_does_not_stand_in_its_own_way():
    old = deployed("a", state="exited", spec="other")
    plan = planned([facts.host("a", gpus=1, containers=[old])], pool(replicas=1))
    assert not plan.stopped_first
    assert [one.container.id for one in plan.gone] == [old.id]


def test_spread_keeps_racks_apart():
    hosts = [facts.host(name, gpus=4) for name in ("a", "b", "c")]
    racks = {"a": "r1", "b": "r1", "c": "r2"}
    names = [declared(host.host, labels={"rack": racks[host.host]}) for host in hosts]
    plan = make(wish(pool(placement="spread", replicas=4)), names, {host.host: host for host in hosts})
    assert [one.host for one in plan.start] == ["a", "b", "c", "c"]


def test_a_host_that_is_only_a_name_is_told_to_be_open():
    named = [declared(f"gpu-{number}", f"gpu-{number}.example") for number in range(7)]
    line = open_hosts([*named, declared("a"), declared("b", "b.example", service_address="10.0.0.9")])
    assert "gpu-0, gpu-1, gpu-2, gpu-3, gpu-4 and 2 more are published" in line
    assert open_hosts([declared("a"), declared("six", "fd00::5")]) == ""


def test_memlock_is_left_alone_where_a_runtime_may_not_raise_it():
    def words(limits):
        plan = planned([facts.host("a")], pool(replicas=1, limits=limits))
        return [str(word) for word in by_phase(plan.bring_up, "start")[0].do[0].argv]

    assert "memlock=-1" in words(Limits())
    assert not any("ulimit" in word for word in words(Limits(memlock="inherit")))
    changed = spec_of(wish(pool(limits=Limits(memlock="inherit"))))
    assert changed != spec_of(wish())
