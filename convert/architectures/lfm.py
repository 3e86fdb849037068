"""LFM2 and LFM3: short convolutions between attention layers; LFM3 with sandwich norms, windows, gates."""

from __future__ import annotations

from backends.hybrid.meta import Rope, RopeScaling
from convert.architectures.dimensions import Dimensions, attentions, dimensions, layer_types, lm_head
from convert.errors import ConvertError
from convert.hf_config import Config
from convert.hf_rope import ropes
from convert.model import CONV, AttentionParts, ConvParts, LayerParts, Model


def lfm2(config: Config) -> Model:
    """Read a config of the model type lfm2. Raises ConvertError."""
    dims = dimensions(config)
    norm_eps = config.positive("norm_eps", 1e-5)
    for key, value in (
        ("block_dim", dims.hidden_size),
        ("conv_dim", dims.hidden_size),
        ("conv_dim_out", dims.hidden_size),
        ("num_heads", dims.num_heads),
        ("block_norm_eps", norm_eps),
        ("block_use_swiglu", True),
        ("use_pos_enc", True),
    ):
        config.only(key, value)
    config.ignore(
        "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init"
    )
    full = config.numbers("full_attn_idxs")
    default = [
        "full_attention" if full is None or index in full else CONV for index in range(dims.num_layers)
    ]
    types = layer_types(config, dims, default, conv=True)
    found = ropes(config, dims.head_dim, dims.context_length, {"full": 1_000_000.0})
    tied = config.find("tie_embedding", bool)
    return _model(
        config,
        "lfm2",
        dims,
        types,
        taps=_taps(config, 3),
        norm_eps=norm_eps,
        ffn=_lfm2_ffn(config),
        ropes_by_type=found,
        names=("out_proj", "q_layernorm", "k_layernorm"),
        tied=True if tied is None else tied,
    )


def lfm3(config: Config) -> Model:
    """Read a config of the model type lfm3. Raises ConvertError."""
    dims = dimensions(config, head_dim=128)
    config.only("attention_bias", False)
    default = [
        "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i > 0 else CONV
        for i in range(dims.num_layers)
    ]
    types = layer_types(config, dims, default, conv=True)
    if any(key in config for key in ("rope_parameters", "rope_scaling", "rope_theta")):
        thetas = {"full": 1_000_000.0, "sliding": 1_000_000.0}
        found = ropes(config, dims.head_dim, dims.context_length, thetas)
    else:
        half = RopeScaling(type="proportional", parameters={"partial_rotary_factor": 0.5, "factor": 1.0})
        found = {
            "full": Rope(theta=1_000_000.0, rotary_dim=dims.head_dim, style="half", scaling=half),
            "sliding": Rope(theta=10_000.0, rotary_dim=dims.head_dim, style="half"),
        }
    sandwich, gated = config.find("use_sandwich_norm", bool), config.find("use_attention_gate", bool)
    return _model(
        config,
        "lfm3",
        dims,
        types,
        taps=_taps(config, 7),
        norm_eps=config.positive("norm_eps", 1e-5),
        ffn=config.size("intermediate_size"),
        ropes_by_type=found,
        names=("o_proj", "q_norm", "k_norm"),
        tied=True,
        window=config.find("sliding_window", int),
        sandwich=sandwich is not False,
        gated=gated is not False,
    )


def _taps(config: Config, default: int) -> int:
    config.only("conv_bias", False)
    taps = config.find("conv_L_cache", int)
    if taps is not None and taps < 2:
        raise ConvertError(f"{config.path}: conv_L_cache is {taps}, but a convolution takes 2 rows at least.")
    return taps or default


def _lfm2_ffn(config: Config) -> int:
    """Return the feed-forward size, which the config gives before it is adjusted."""
    size = config.find("block_ff_dim", int) or config.size("intermediate_size")
    config.ignore("intermediate_size")
    adjusted = config.find("block_auto_adjust_ff_dim", bool)
    multiplier, step = config.find("block_ffn_dim_multiplier", float), config.find("block_multiple_of", int)
    if adjusted is False:
        return size
    size = int(2 * size / 3)
    if "block_ffn_dim_multiplier" in config or multiplier is None:
        size = int((1.0 if multiplier is None else multiplier) * size)
    step = step or 256
    return step * -(-size // step)


def _model(
    config: Config,
    architecture: str,
    dims: Dimensions,
    types: list[str],
    *,
    taps: int,
    norm_eps: float,
    ffn: int,
    ropes_by_type: dict[str, Rope],
    names: tuple[str, str, str],
    tied: bool,
    window: int | None = None,
    sandwich: bool = False,
    gated: bool = False,
) -> Model:
    """names: of the output projection and the norms of q and k, in which the two differ."""
    if not any(kind != CONV for kind in types):
        raise ConvertError(f"{config.path}: layer_types has no layer with attention.")
    return Model(
        architecture=architecture,
        hidden_size=dims.hidden_size,
        intermediate_size=ffn,
        num_heads=dims.num_heads,
        num_kv_heads=dims.num_kv_heads,
        head_dim=dims.head_dim,
        vocab_size=dims.vocab_size,
        context_length=dims.context_length,
        norm_eps=norm_eps,
        attention=attentions(types, ropes_by_type, dims.head_dim**-0.5, window, config, gated=gated),
        layers=[
            _layer(f"model.layers.{index}", kind, taps, names, sandwich=sandwich, gated=gated)
            for index, kind in enumerate(types)
        ],
        embedding="model.embed_tokens.weight",
        final_norm="model.embedding_norm.weight",
        lm_head=lm_head(config, tied=tied),
    )


def _layer(
    prefix: str, kind: str, taps: int, names: tuple[str, str, str], *, sandwich: bool, gated: bool
) -> LayerParts:
    out, q_norm, k_norm = (f"{prefix}.self_attn.{name}.weight" for name in names)
    operator: AttentionParts | ConvParts
    if kind == CONV:
        operator = ConvParts(
            in_proj=f"{prefix}.conv.in_proj.weight",
            kernel=f"{prefix}.conv.conv.weight",
            out_proj=f"{prefix}.conv.out_proj.weight",
            taps=taps,
        )
    else:
        q, k, v, gate = (f"{prefix}.self_attn.{part}_proj.weight" for part in "qkvg")
        operator = AttentionParts(
            kind, q, k, v, out, gate=gate if gated else None, q_norm=q_norm, k_norm=k_norm
        )
    return LayerParts(
        operator=operator,
        norm=f"{prefix}.operator_norm.weight",
        post_norm=f"{prefix}.post_operator_norm.weight" if sandwich else None,
        ffn_norm=f"{prefix}.ffn_norm.weight",
        post_ffn_norm=f"{prefix}.post_ffn_norm.weight" if sandwich else None,
        gate=f"{prefix}.feed_forward.w1.weight",
        up=f"{prefix}.feed_forward.w3.weight",
        down=f"{prefix}.feed_forward.w2.weight",
    )
