"""What the route table says of models: the list that a client may see, and the pool that serves one."""

from __future__ import annotations

from urllib.parse import unquote

from gpufleet.proxy.decide.auth import forbid
from gpufleet.proxy.run.fleet import LivePool, LiveTable
from gpufleet.proxy.wire.openai import model_card, models_page
from gpufleet.proxy.wire.paths import Place, Service
from gpufleet.proxy.wire.refusal import Refusal, bad_body, no_healthy_members, no_such_model, no_such_pool
from gpufleet.tokens.model import Principal


def models_answer(table: LiveTable, place: Place, principal: Principal, created: int) -> bytes | Refusal:
    """GET /v1/models and /v1/models/NAME: no member is asked, so none that is down is missed.

    `created` is in seconds since 1970.
    """
    pools = [table.pools[place.pool]] if place.pool in table.pools else list(table.pools.values())
    models = [model for pool in pools for model in pool.models if principal.may_use(model)]
    if place.service is not Service.MODEL_CARD:
        return models_page(models, created)
    wanted = place.path.removeprefix("/v1/models/")
    if wanted not in models:
        wanted = unquote(wanted)  # clients write the slash in a name as %2F; the name goes nowhere else
    return model_card(wanted, created) if wanted in models else no_such_model(wanted)


def choose_pool(
    table: LiveTable, place: Place, principal: Principal, model: str | None
) -> LivePool | Refusal:
    """The pool that the path names, else the one that serves the model."""
    if not table.pools:
        return no_healthy_members()
    if place.pool is not None:
        pool = table.pools.get(place.pool)
        if pool is None:  # it went while the body was on its way
            return no_such_pool(place.pool)
        model = model or (pool.models[0] if pool.models else pool.name)
        if pool.models and model not in pool.models:
            return no_such_model(model)
        return forbid(principal, model) or pool
    if not model:
        return bad_body("The request names no `model`", param="model")
    refusal = forbid(principal, model)
    if refusal is not None:
        return refusal
    return table.pool_for(model) or no_such_model(model)
