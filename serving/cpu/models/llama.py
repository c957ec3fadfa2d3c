"""SGLang's own Llama, which the tiny model is."""

from sglang.srt.models.llama import LlamaForCausalLM

EntryClass = [LlamaForCausalLM]
