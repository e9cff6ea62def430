"""families.py - which RMSNorm class of which model has which arithmetic: one table.

A row is one arithmetic: the preset of the C library that has the same roundings and returns the same type, where eps,
gate and groups stand on an instance, and the names of the classes that were read and found to be it. The table only
proposes: patching.py runs the class beside its row on inputs that tell all rows apart, and believes the result of that
alone. So a class of the right name and other contents (another release, somebody's own) is left as it is.

Imports neither torch nor transformers.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """One arithmetic, and the classes that have it."""

    name: str
    preset: str  # of the C library, rmsnorm_preset
    eps: str  # the attribute
    classes: tuple[str, ...]
    # "required"; "optional": may be None or missing; "none"; "plus one": (1 + weight), added in the weight's own type,
    # unlike the offset of a preset, which is added in float32
    weight: str = "required"
    gate: str = ""  # "": the class takes none; "required"; "optional": without it, it is a plain norm
    activation: str = ""  # the attribute that names the gate's activation; "" = the preset's own
    before: tuple[tuple[bool, str], ...] = ()  # preset by the attribute norm_before_gate
    groups: str = ""  # the attribute with the number of groups, or with "columns:" before it, of the columns of one
    divisor: int = 0  # what the sum of squares is divided by; 0 = the number of columns
    only: tuple[tuple[str, Any], ...] = ()  # attributes and the value each has to have, where it is there at all


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FAMILIES = (
    Family(
        "llama",
        "llama",
        "variance_epsilon",
        _names("""
        Aimv2RMSNorm Apertus1p5TextRMSNorm ApertusRMSNorm ArceeRMSNorm AriaTextRMSNorm AXK1RMSNorm
        AXK2RMSNorm BailingHybridRMSNorm BambaRMSNorm BitNetRMSNorm BltRMSNorm ChameleonRMSNorm ClvpRMSNorm
        Cohere2MoeRMSNorm Cosmos3EdgeTextRMSNorm CsmRMSNorm CwmRMSNorm DeepseekOcr2TextRMSNorm
        DeepseekOcr2VisionRMSNorm DeepseekV2RMSNorm DeepseekV32RMSNorm DeepseekV3RMSNorm Deimv2RMSNorm
        DiaRMSNorm DiffLlamaRMSNorm DogeRMSNorm Dots1RMSNorm Dots3NoteRMSNorm Emu3RMSNorm
        Ernie4_5_MoeRMSNorm Ernie4_5_VLMoeRMSNorm Ernie4_5RMSNorm EuroBertRMSNorm EvollaRMSNorm
        Exaone4_5_RMSNorm Exaone4RMSNorm ExaoneMoeRMSNorm FalconH1RMSNorm FalconMambaRMSNorm
        Glm4MoeLiteRMSNorm Glm4MoeRMSNorm Glm4RMSNorm Glm4vMoeRMSNorm Glm4vMoeTextRMSNorm Glm4vRMSNorm
        Glm5NextRMSNorm Glm5NextTextRMSNorm GlmImageRMSNorm GlmMoeDsaRMSNorm GlmOcrRMSNorm GlmRMSNorm
        Granite4VisionTextRMSNorm GraniteDoclingTextRMSNorm GraniteMoeHybridRMSNorm GraniteMoeRMSNorm
        GraniteMoeSharedRMSNorm GraniteMoeSWARMSNorm GraniteRMSNorm GraniteSWARMSNorm HiggsAudioV2RMSNorm
        HunYuanDenseV1RMSNorm HunYuanMoEV1RMSNorm HunYuanVLRMSNorm HyperCLOVAXRMSNorm HYV3RMSNorm HYV4RMSNorm
        HYV4VLRMSNorm Idefics2RMSNorm Idefics3RMSNorm InklingRMSNorm InternVLVisionRMSNorm JambaRMSNorm
        JetMoeRMSNorm KimiLinearRMSNorm Kolibri1RMSNorm LagunaRMSNorm Lfm2MoeRMSNorm Lfm2RMSNorm Lfm3RMSNorm
        Lfm3VlVisionRMSNorm LightOnOcrRMSNorm LlamaRMSNorm LongcatFlashRMSNorm Mamba2RMSNorm MambaRMSNorm
        MellumRMSNorm MiMoV2FlashRMSNorm MiniCPM3RMSNorm MiniMaxM2RMSNorm MiniMaxRMSNorm Ministral3RMSNorm
        MinistralRMSNorm Mistral3RMSNorm Mistral4RMSNorm MistralLarge4RMSNorm MistralRMSNorm MixtralRMSNorm
        MllamaTextRMSNorm Molmo2RMSNorm MuseGlimmerAssistantRMSNorm NeuCodecRMSNorm OlmoeRMSNorm Ovis2RMSNorm
        PaddleOCRRMSNorm PeAudioEncoderRMSNorm PeAudioVideoEncoderRMSNorm PeVideoEncoderRMSNorm Phi3RMSNorm
        Phi4MultimodalRMSNorm PixtralRMSNorm QianfanOCRVisionRMSNorm Qwen2_5_VLRMSNorm Qwen2_5OmniRMSNorm
        Qwen2MoeRMSNorm Qwen2RMSNorm Qwen2VLRMSNorm Qwen3MoeRMSNorm Qwen3OmniMoeCode2WavRMSNorm
        Qwen3OmniMoeRMSNorm Qwen3OmniMoeTextRMSNorm Qwen3OmniMoeThinkerTextRMSNorm Qwen3RMSNorm
        Qwen3VLMoeTextRMSNorm Qwen3VLTextRMSNorm Sapiens2RMSNorm SeedOssRMSNorm SmolLM3RMSNorm
        SolarOpenRMSNorm TimesFm2_5RMSNorm TimesFmRMSNorm UltrabertRMSNorm UltraVBertRMSNorm
        UnlimitedOcrTextRMSNorm VibeVoiceAcousticTokenizerRMSNorm VibeVoiceAsrRMSNorm VibeVoiceRMSNorm
        VoxtralRealtimeRMSNorm Xcodec2RMSNorm YoutuRMSNorm Zamba2RMSNorm ZambaRMSNorm ZayaRMSNorm
        """),
    ),
    Family("llama, other names", "llama", "eps", _names("Llama4TextRMSNorm CpmAntLayerNorm")),
    Family(
        "xlstm",
        "llama",
        "eps",
        _names("xLSTMRMSNorm"),
        weight="optional",
        only=(("bias", None), ("force_float32_reductions", True)),
    ),
    Family(
        "gemma",
        "gemma",
        "eps",
        _names("""
        Gemma2RMSNorm Gemma3RMSNorm GemmaRMSNorm MiniMaxM3VLRMSNorm MuseGlimmerTextCenteredRMSNorm
        Qwen3_5MoeRMSNorm Qwen3_5RMSNorm Qwen3NextRMSNorm RecurrentGemmaRMSNorm Step3p7RMSNorm
        T5Gemma2RMSNorm T5GemmaRMSNorm VaultGemmaRMSNorm
        """),
    ),
    Family("gemma, groups", "gemma", "eps", _names("Qwen4ExpTextRMSNorm"), groups="columns:group_size"),
    Family("gemma, 1 + w rounded", "gemma3n", "eps", _names("MuseSparkTextCenteredRMSNorm"), weight="plus one"),
    Family(
        "gemma3n",
        "gemma3n",
        "eps",
        _names("""
        DiffusionGemmaRMSNorm EmbeddingGemma2RMSNorm Gemma3nRMSNorm Gemma4RMSNorm Gemma4UnifiedRMSNorm
        KyutaiSpeechToTextRMSNorm MoshiRMSNorm MuseGlimmerRMSNorm MuseSparkRMSNorm NeoMMERMSNorm
        """),
        weight="optional",
    ),
    Family(
        "olmo2",
        "olmo2",
        "variance_epsilon",
        _names("""
        AfmoeRMSNorm BeamRMSNorm DeepseekV4RMSNorm FlexOlmoRMSNorm FlintRMSNorm GptOssRMSNorm HeliumRMSNorm
        Inkling2LoopRMSNorm Inkling2RMSNorm LaraMiniRMSNorm NemotronH_Omni_RMSNorm NemotronHRMSNorm Olmo2RMSNorm
        Olmo3RMSNorm OlmoHybridRMSNorm OpenAIPrivacyFilterRMSNorm
        """),
    ),
    Family(
        "t5",
        "t5",
        "variance_epsilon",
        _names("""
        IdeficsRMSNorm Kosmos2_5LayerNorm LongT5LayerNorm MT5LayerNorm Pix2StructLayerNorm
        Pop2PianoLayerNorm SwitchTransformersLayerNorm T5LayerNorm UdopLayerNorm UMT5LayerNorm
        """),
    ),
    Family(
        "no weight",
        "llama4-qk",
        "eps",
        _names("""
        EsmFold2RMSNorm FalconMambaWeightlessRMSNorm HrmTextRMSNorm Inkling2LoopUnweightedRMSNorm
        Inkling2UnweightedRMSNorm Llama4TextL2Norm NanoChatRMSNorm
        """),
        weight="none",
    ),
    Family("no weight, a sum", "llama4-qk", "eps", _names("DoryL2Norm"), weight="none", divisor=1),
    Family(
        "no weight, rstd rounded",
        "deepseek-v4",
        "eps",
        _names("DeepseekV4UnweightedRMSNorm Glm5NextTextUnweightedRMSNorm"),
        weight="none",
    ),
    Family(
        "gate after, x-hat rounded",
        "qwen3-next-gated",
        "variance_epsilon",
        _names("""
        OlmoHybridRMSNormGated Qwen3_5MoeRMSNormGated Qwen3_5RMSNormGated Qwen3NextRMSNormGated
        Qwen4ExpTextRMSNormGated
        """),
        gate="required",
        activation="activation",
    ),
    Family(
        "gate after",
        "fla",
        "variance_epsilon",
        _names("BailingHybridRMSNormGated Glm5NextTextRMSNormGated KimiLinearRMSNormGated LaraMiniRMSNormGated"),
        gate="required",
        activation="activation",
    ),
    Family(
        "gate before, groups",
        "zamba2",
        "variance_epsilon",
        _names("""
        BambaRMSNormGated GraniteMoeHybridRMSNormGated MambaRMSNormGated NemotronHRMSNormGated Zamba2RMSNormGated
        """),
        gate="optional",
        groups="columns:group_size",
    ),
    Family(
        "falcon-h1",
        "fla",
        "variance_epsilon",
        _names("FalconH1RMSNormGated"),
        gate="optional",
        before=((True, "fla"), (False, "mamba-ssm")),
        groups="n_groups",
    ),
    Family("torch", "torch", "eps", _names("torch.nn.modules.normalization.RMSNorm"), weight="optional"),
)

# Named like a norm of this kind, and yet not to be patched: why. (Classes that are not modules are not listed.)
REASONS = {
    "AXK2GatedRMSNorm": "a norm, a small network and a gate; the norm inside it is patched on its own",
    "HYV4UnweightedRMSNorm": "returns the factor of each row, not the normalised row",
    "HYV4VLUnweightedRMSNorm": "returns the factor of each row, not the normalised row",
    "MuseSparkTextInputScaledRMSNorm": "multiplies by the weight before the norm, and rounds between the two",
    "VoxtralRealtimeTextAdaRmsNorm": "no norm at all: a small network that makes the scale of one",
}

# A short name means the class of that name in transformers, or in code that came with a checkpoint.
FAMILY_OF = {name: family for family in FAMILIES for name in family.classes}


def family_of(cls: type) -> Family | None:
    """The row that proposes itself for a class, or None."""
    return FAMILY_OF.get(f"{cls.__module__}.{cls.__qualname__}") or FAMILY_OF.get(cls.__qualname__)


def family_named(name: str) -> Family:
    """The row of that name; for classes that a caller adds."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise ValueError(f"there is no family {name!r}; there are: {', '.join(repr(f.name) for f in FAMILIES)}")
