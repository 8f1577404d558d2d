"""`gpufleet models`: the catalogue of models, and whether one fits a GPU, a slice or a host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import models_stage
from gpufleet.cli.console import Answer, finish, table
from gpufleet.cli.settings import current
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.inventory.model import Inventory

app = typer.Typer(
    no_args_is_help=True,
    help="List the models of the catalogue, show one, and tell whether it fits.",
    rich_markup_mode=None,
    add_completion=False,
)

MemoryGib = Annotated[
    float | None,
    typer.Option(
        metavar="G", min=0.1, max=1_000_000, help="Memory as CUDA reports it; wins over --gpu and --slice."
    ),
]
Gpu = Annotated[
    str, typer.Option(metavar="NAME|HOST:INDEX", help="A GPU by its model, as H100-80GB, or one of a host.")
]
Slice = Annotated[str, typer.Option("--slice", metavar="PROFILE", help="A MIG slice, by its profile.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SELECTOR", help="Only models that fit a GPU or slice of these hosts; may be repeated."
    ),
]
Config = Annotated[Path | None, typer.Option(metavar="CONFIG.JSON", help="Any model's own config.json.")]
Parameters = Annotated[int | None, typer.Option(metavar="N", min=1, help="Numbers of the whole model.")]
Weights = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Directory of its safetensors files; only headers are read."),
]
Share = Annotated[
    float | None,
    typer.Option(metavar="SHARE", min=0.01, max=1.0, help="The version's default when not given."),
]
Ranks = Annotated[int, typer.Option(metavar="N", min=1, max=64, help="GPUs a replica takes.")]
Context = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Longest request; the model's own context when not given."),
]
Requests = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Requests at once; vLLM's default for the GPU when not given."),
]
Batch = Annotated[int | None, typer.Option(metavar="N", min=1, help="Tokens of a batch.")]
CacheType = Annotated[str, typer.Option(metavar="TYPE", help="auto, bfloat16, fp8.")]
Quantization = Annotated[
    str, typer.Option(metavar="NAME", help="Format of the weights, where config.json does not say it.")
]
Block = Annotated[int, typer.Option(metavar="N", min=1, max=4096, help="Tokens in a block.")]
Version = Annotated[
    str, typer.Option(metavar="VERSION", help="Version of vLLM; the catalogue's, else the newest.")
]
Eager = Annotated[bool, typer.Option("--enforce-eager", help="Without CUDA graphs.")]
Prefixes = Annotated[
    bool,
    typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help="Whether prefixes are cached."),
]
Offload = Annotated[
    float, typer.Option(metavar="G", min=0, max=1_000_000, help="Cache in the host's memory, GiB.")
]
SeenWeights = Annotated[
    float | None, typer.Option(metavar="G", min=0, max=1_000_000, help="Weights on one GPU, when measured.")
]
SeenActivation = Annotated[
    float | None, typer.Option(metavar="G", min=0, max=1_000_000, help="Activation peak, when measured.")
]
SeenOutside = Annotated[
    float | None,
    typer.Option(metavar="G", min=0, max=1_000_000, help="Memory outside PyTorch, when measured."),
]
SeenGraphs = Annotated[
    float | None, typer.Option(metavar="G", min=0, max=1_000_000, help="CUDA graphs, when measured.")
]
SeenCache = Annotated[
    float | None,
    typer.Option(
        metavar="G", min=-1_000_000, max=1_000_000, help="Memory left for the cache, when a log says it."
    ),
]


@app.command(name="list")
def list_models(
    modality: Annotated[str, typer.Option(metavar="NAME", help="llm, embedding, stt, tts or ocr.")] = "",
    memory_gib: MemoryGib = None,
    gpu: Gpu = "",
    mig: Slice = "",
    hosts: Hosts = None,
) -> None:
    """List the catalogue; with a GPU, a slice or hosts, only what fits there or may fit."""
    from gpufleet.cli import models_text as text
    from gpufleet.models.model import Modality

    known = text.catalogue_of(_inventory())
    words = [one.value for one in Modality]
    if modality and modality not in words:
        raise UsageError(f"there is no modality `{modality}`", hints=(f"one of: {', '.join(words)}",))
    chosen = [entry for entry in known.values() if modality in {"", entry.modality.value}]
    places = text.places(current(), memory_gib=memory_gib, gpu=gpu, mig=mig, hosts=hosts or ())
    rows = [row for entry in chosen if (row := text.row(entry, places))]
    headers = (
        "NAME",
        "MODALITY",
        "PARAMETERS",
        "MEMORY GIB",
        "CAPABILITY",
        "FORMAT",
        *(("VERDICT",) if places else ()),
    )
    shown = table(headers, [text.cells(row, places) for row in rows])
    raise finish(Answer(command="models list", fields={"models": rows}, text=shown))


@app.command()
def show(name: Annotated[str, typer.Argument(metavar="NAME", help="The model.")]) -> None:
    """Show one model with the source of every figure."""
    from gpufleet.cli import models_text as text
    from gpufleet.models.load import named

    entry = named(name, text.catalogue_of(_inventory()))
    raise finish(Answer(command="models show", fields=text.entry_fields(entry), text=text.entry_lines(entry)))


@app.command()
def fit(  # options, given by name
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A model of the catalogue.")] = "",
    config: Config = None,
    parameters: Parameters = None,
    weights: Weights = None,
    memory_gib: MemoryGib = None,
    gpu: Gpu = "",
    mig: Slice = "",
    gpu_memory_utilization: Share = None,
    tensor_parallel: Ranks = 1,
    max_model_len: Context = None,
    max_num_seqs: Requests = None,
    max_num_batched_tokens: Batch = None,
    kv_cache_dtype: CacheType = "auto",
    quantization: Quantization = "",
    block_size: Block = 16,
    vllm: Version = "",
    enforce_eager: Eager = False,
    prefix_caching: Prefixes = True,
    kv_offload: Offload = 0.0,
    weights_gib: SeenWeights = None,
    activation_gib: SeenActivation = None,
    non_torch_gib: SeenOutside = None,
    graphs_gib: SeenGraphs = None,
    available_kv_gib: SeenCache = None,
) -> None:
    """Tell whether a model fits: fits, tight, no or unknown, and what would make it fit."""
    from gpufleet.cli import models_text as text
    from gpufleet.engine.memory import Measured, Setup

    seen = Measured(weights_gib, activation_gib, non_torch_gib, graphs_gib, available_kv_gib)
    subject = text.subject(_inventory, name, config)
    place = text.one_place(current(), memory_gib=memory_gib, gpu=gpu, mig=mig, measured=seen)
    setup = Setup(
        memory_gib=place.memory_gib,
        card_gib=place.card_gib,
        capability=place.capability,
        share=gpu_memory_utilization,
        ranks=tensor_parallel,
        context=max_model_len,
        requests=max_num_seqs,
        batch=max_num_batched_tokens,
        kv_dtype=kv_cache_dtype,
        quantization=quantization,
        version=text.version(vllm) or subject.version,
        block=block_size,
        eager=enforce_eager,
        prefixes=prefix_caching,
        parameters=parameters if parameters is not None else subject.parameters,
        stored=text.stored(weights),
        offload_gib=kv_offload,
        measured=seen,
    )
    raise finish(text.fit_answer(subject, place, setup))


def _inventory() -> Inventory | None:
    """The inventory when one is named or lies here; the shipped catalogue needs none."""
    from gpufleet.cli import wiring

    settings = current()
    if settings.inventory is None and not Path("inventory.yaml").exists():
        return None
    return wiring.load_inventory(settings)


models_stage.register(app)
