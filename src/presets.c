/* presets.c - the roundings of the model families by name.
 *
 * Every row was read from the source named beside it: which sum is normalised, where x-hat and the weighted value are
 * rounded before the last rounding to the type of y, and where a gate stands. Choose y in the type the family returns:
 * that of x, or for rows with PROMOTED the type x and weight promote to, or for t5 and diffusers the weight's.
 * eps is not here: it belongs to the checkpoint.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

#include <string.h>

typedef struct preset {
  const char *name;
  const char *families;
  rmsnorm_numerics numerics;
} preset;

#define SUM(point)        .round_sum = RMSNORM_ROUND_##point
#define RSTD(point)       .round_rstd = RMSNORM_ROUND_##point
#define XHAT(point)       .round_xhat = RMSNORM_ROUND_##point
#define NORMED(point)     .round_normed = RMSNORM_ROUND_##point
#define GATE(kind, place) .gate = RMSNORM_GATE_##kind, .gate_place = RMSNORM_GATE_##place
#define OFFSET(value)     .weight_offset = (value)

static const preset table[] = {
    {"fp32", "float32 throughout, every output rounded once", {SUM(NONE)}},
    /* torch.nn.RMSNorm; the add before it is an operation of its own. JAX and Flax layers, torchtitan: the same. */
    {"torch", "torch.nn.RMSNorm, Flax, torchtitan", {SUM(STORED), NORMED(X)}},
    /* transformers modeling_llama.py and its copies: x-hat to x's type, then w * x-hat. */
    {"llama",
     "Llama, Mistral, Mixtral, Qwen2, Phi-3, Granite, Jamba, GLM-4, Hunyuan, Kimi, DeepSeek V2/V3 (transformers)",
     {SUM(STORED), XHAT(X), NORMED(PROMOTED)}},
    /* transformers modeling_qwen3.py: as llama; q and k per head. */
    {"qwen3", "Qwen3, also its q/k norms", {SUM(STORED), XHAT(X), NORMED(PROMOTED)}},
    /* transformers modeling_gemma.py, modeling_gemma2.py, modeling_gemma3.py: (1 + w) in float32, one rounding. */
    {"gemma", "Gemma 1, 2, 3", {OFFSET(1), SUM(STORED), NORMED(X)}},
    /* transformers modeling_gemma3n.py: the weight as it is; the v norm has none. */
    {"gemma3n", "Gemma 3n, Gemma 4", {SUM(STORED), NORMED(X)}},
    /* transformers modeling_t5.py: x-hat to the weight's type if that is f16 or bf16. */
    {"t5", "T5, mT5, UMT5", {SUM(STORED), XHAT(WEIGHT), NORMED(WEIGHT)}},
    /* diffusers normalization.py, RMSNorm: as t5; without weight the output has x's type. */
    {"diffusers", "Flux, SD3, Wan and others of diffusers", {SUM(STORED), XHAT(WEIGHT), NORMED(WEIGHT)}},
    /* diffusers transformer_mochi.py */
    {"mochi", "Mochi", {SUM(STORED), NORMED(X)}},
    /* transformers modeling_olmo2.py, modeling_olmo3.py: w * x-hat in float32, then rounded. */
    {"olmo2", "OLMo 2, OLMo 3", {SUM(STORED), NORMED(X)}},
    /* transformers modeling_gpt_oss.py: the weight is kept in float32. */
    {"gpt-oss", "gpt-oss", {SUM(STORED), NORMED(X)}},
    /* DeepSeek's own inference code, V3.2 model.py: the float32 sum is normalised; the weight is float32. */
    {"deepseek", "DeepSeek V3.2, official inference code", {SUM(NONE), NORMED(X)}},
    /* DeepSeek V4's unweighted norm: rstd is rounded to x's type before it is used. */
    {"deepseek-v4", "DeepSeek V4, norms without weight", {SUM(STORED), RSTD(X), NORMED(X)}},
    /* transformers modeling_llama4.py, Llama4TextL2Norm: no weight. */
    {"llama4-qk", "Llama 4, q/k norms without weight", {SUM(STORED), XHAT(X), NORMED(X)}},
    /* transformers modeling_qwen3_next.py, Qwen3NextRMSNorm: (1 + w) in float32. */
    {"qwen3-next", "Qwen3-Next, Qwen3.5", {OFFSET(1), SUM(STORED), NORMED(X)}},
    /* The same file, Qwen3NextRMSNormGated: no +1; round, weight, then silu(gate) in float32. */
    {"qwen3-next-gated",
     "Qwen3-Next, Qwen3.5, gated norm",
     {SUM(STORED), XHAT(X), NORMED(PROMOTED), GATE(SILU, AFTER)}},
    /* transformers modeling_mamba2.py, MambaRMSNormGated: x * silu(gate) in float32 before the norm. */
    {"mamba2",
     "Mamba-2, Bamba, Granite hybrid (transformers)",
     {SUM(STORED), XHAT(X), NORMED(PROMOTED), GATE(SILU, BEFORE)}},
    /* transformers modeling_zamba2.py: as mamba2, with a norm per group (set groups). */
    {"zamba2", "Zamba 2, Nemotron-H, per group", {SUM(STORED), XHAT(X), NORMED(PROMOTED), GATE(SILU, BEFORE)}},
    /* mamba_ssm layernorm_gated.py with norm_before_gate false, as Mamba-2 calls it: float32, rounded once. */
    {"mamba-ssm", "mamba_ssm's own gated kernel", {SUM(NONE), GATE(SILU, BEFORE)}},
    /* fla fused_norm_gate.py: norm, weight and gate in float32, rounded once. */
    {"fla", "flash-linear-attention: GLA, KDA, DeltaNet, swish gate", {SUM(NONE), GATE(SILU, AFTER)}},
    {"fla-sigmoid", "flash-linear-attention, sigmoid gate", {SUM(NONE), GATE(SIGMOID, AFTER)}},
    /* vLLM linear_attn.py, MiniMaxText01RMSNormTP: float32 with the mean over the global width (set divisor). */
    {"minimax", "MiniMax Text-01, M2", {SUM(STORED), NORMED(X)}},
    /* mlx.core.fast.rms_norm: x-hat to x's type, the weight multiplied in that type. */
    {"mlx", "MLX fast.rms_norm", {SUM(STORED), XHAT(X), NORMED(PROMOTED)}},
};

enum { PRESETS = sizeof table / sizeof table[0] };

rmsnorm_status rmsnorm_preset(const char *name, rmsnorm_numerics *numerics) {
  if (name == NULL || numerics == NULL)
    return rn_error(RMSNORM_ERROR_NULL, "%s: is NULL", name == NULL ? "name" : "numerics");
  for (int i = 0; i < PRESETS; i++)
    if (strcmp(table[i].name, name) == 0) {
      *numerics = table[i].numerics;
      return RMSNORM_OK;
    }
  return rn_error(RMSNORM_ERROR_ENUM, "name: there is no preset \"%.64s\"; rmsnorm_preset_name lists them", name);
}

const char *rmsnorm_preset_name(int i) {
  return i >= 0 && i < PRESETS ? table[i].name : NULL;
}

const char *rmsnorm_preset_families(int i) {
  return i >= 0 && i < PRESETS ? table[i].families : NULL;
}
