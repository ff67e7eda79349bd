#!/usr/bin/env python3
"""Writes what the program is made of: a software bill of materials (CycloneDX 1.5, JSON) from Cargo.lock.

    deploy/sbom.py > umavez.cdx.json                       for x86_64-unknown-linux-gnu
    deploy/sbom.py aarch64-unknown-linux-gnu > …

Crates that are built into the program or that build it, with version, licence, checksum and who needs whom; test
dependencies are left out. The same Cargo.lock gives the same file, byte for byte.
"""

import json
import os
import subprocess
import sys
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main():
    target = sys.argv[1] if len(sys.argv) > 1 else "x86_64-unknown-linux-gnu"
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    with open(os.path.join(ROOT, "Cargo.lock"), "rb") as file:
        lock = tomllib.load(file)["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock}
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]

    needs = {}
    waiting = [root]
    while waiting:
        at = waiting.pop()
        if at in needs:
            continue
        # A kind of null is a plain dependency; "dev" ones are for tests.
        kinds = lambda dependency: any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
        needs[at] = sorted(dependency["pkg"] for dependency in nodes[at]["deps"] if kinds(dependency))
        waiting.extend(needs[at])

    def purl(package):
        return f"pkg:cargo/{package['name']}@{package['version']}"

    def component(package, kind):
        found = {
            "type": kind,
            "bom-ref": purl(package),
            "name": package["name"],
            "version": package["version"],
            "scope": "required",
            "purl": purl(package),
        }
        if package["license"]:
            # Some old manifests write a slash where SPDX has OR.
            found["licenses"] = [{"expression": package["license"].replace("/", " OR ").replace("  ", " ")}]
        if checksum := checksums.get((package["name"], package["version"])):
            found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package["repository"]:
            found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return found

    libraries = sorted((packages[at] for at in needs if at != root), key=purl)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": component(packages[root], "application"),
            "properties": [{"name": "umavez:target", "value": target}],
        },
        "components": [component(package, "library") for package in libraries],
        "dependencies": [
            {"ref": purl(packages[at]), "dependsOn": sorted(purl(packages[other]) for other in others)}
            for at, others in sorted(needs.items(), key=lambda entry: purl(packages[entry[0]]))
        ],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
