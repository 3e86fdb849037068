"""From chat messages to a prompt.

A prompt is a list of spans: what the template says, in which control tokens count, and what clients wrote,
which stays plain text whatever it spells (`guard` tells how they are kept apart). Templates are Jinja, run in
a sandbox: built in, or the one that came with the model.

The built-in forms, by the name an entry's `template` key uses:

| name | for | thinking | tools |
|---|---|---|---|
| chatml | any ChatML model, Qwen3-4B-Instruct-2507 among them | | Hermes |
| smollm2 | SmolLM2: ChatML with a default system text | | Hermes |
| qwen3-vl | Qwen3-VL, WeVisOne: ChatML | | Hermes |
| qwen3 | Qwen3 with a thinking switch | on, off | Hermes |
| nanbeige | Nanbeige 4.1: ChatML with default system texts | always | Hermes |
| minicpm5 | MiniCPM5: ChatML | on, off | `<function name="f"><param name="p">` |
| kanana2 | Kanana-2: ChatML | on, off (default) | unknown; Hermes in a history |
| granite4.2 | Granite 4.2: ChatML | on (default), off | `<function=f><parameter=p>` |
| granite4 | Granite 4.0 | | Hermes |
| lfm2 | LFM2: ChatML | | `[f(p="v")]`, all between marks |
| lfm3 | LFM3, LFM2.5: ChatML | by itself | `[f(p="v")]`, calls between marks |
| llama3 | Llama 3 | | none |
| gemma4 | Gemma 4 | on, off (default) | none |
| rwkv | RWKV7-G1: `User: ...` | on, off | none |

The texts around tool schemas are those the models were trained on, hence word for word.

A longer chat's prompt begins with a shorter one's, up to where the shorter one's own answer begins: what a
thinking switch adds there (`<think>` ...) is not part of a history, except with granite4.2, thinking off.
Reasoning between tool calls is part of the prompt until the next question, and then is not.
"""

from server.registry.template_names import BUILTIN_TEMPLATES
from server.templates.errors import TemplateError
from server.templates.render import Templates

__all__ = ["BUILTIN_TEMPLATES", "TemplateError", "Templates"]
