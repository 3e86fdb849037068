"""What names of models may look like, the same wherever one is written: settings, models.yaml."""

from __future__ import annotations

import re

MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,255}")  # an id or an alias

MODEL_ID_RULE = "letters, digits, '.', '_' and '-', no slash"
MODEL_NAME_RULE = "letters, digits, '.', '_', ':', '/' and '-'"
