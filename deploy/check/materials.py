"""Holds a bill of materials against CycloneDX's own schema, unknown fields included; says what is wrong."""

import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

with open(sys.argv[1]) as file:
    error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(file.read())
if error:
    sys.exit(f"{sys.argv[1]}: {str(error)[:2000]}")
