#!/usr/bin/env bash
# Checks what is in deploy/: the Dockerfile with hadolint, compose.yaml against the Compose specification's schema, the
# Kubernetes manifests against Kubernetes's schemas, the bill of materials against CycloneDX's, the unit with systemd.
# Each check also has to refuse a broken copy, so that none of them passes by looking at nothing.
#
#   deploy/check.sh          needs python3 with venv; installs deploy/check/requirements.txt into target/deploy-check
set -euo pipefail
cd "$(dirname "$0")/.."

tools=target/deploy-check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "deploy/check.sh: $*" >&2; exit 1; }

install_tools() {
    local lock=deploy/check/requirements.txt
    if ! cmp -s "$lock" "$tools/installed"; then
        rm -rf "$tools"
        python3 -m venv "$tools" || fail "python3 cannot make a virtual environment: install python3-venv"
        "$tools/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r "$lock"
        cp "$lock" "$tools/installed"
    fi
}

passes() { # WHAT COMMAND…
    local what=$1
    shift
    "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$what: refused"; }
    echo "ok: $what"
}

refuses() { # WHAT WORD COMMAND…: fails, and says WORD
    local what=$1 word=$2
    shift 2
    if "$@" >"$work/log" 2>&1; then fail "$what: a broken copy passed"; fi
    grep -q -- "$word" "$work/log" || { cat "$work/log" >&2; fail "$what: refused for another reason than $word"; }
    echo "ok: $what refuses a broken copy"
}

dockerfile() {
    passes Dockerfile "$tools/bin/hadolint" deploy/Dockerfile
    sed 's|^WORKDIR /src$|WORKDIR src|' deploy/Dockerfile >"$work/Dockerfile"
    refuses Dockerfile DL3000 "$tools/bin/hadolint" "$work/Dockerfile"
}

compose() {
    local check=("$tools/bin/check-jsonschema" --builtin-schema vendor.compose-spec)
    passes compose.yaml "${check[@]}" deploy/compose.yaml
    # Of a file that is mounted alone, a container keeps the one that an editor has replaced.
    if grep -nE '^ +- \.[^:]*\.(toml|ya?ml):' deploy/compose.yaml; then fail "compose.yaml: mount the folder"; fi
    sed 's|stop_grace_period:|stop_grace_perjod:|' deploy/compose.yaml >"$work/compose.yaml"
    refuses compose.yaml stop_grace_perjod "${check[@]}" "$work/compose.yaml"
}

kubernetes() {
    local version manifests=()
    # The kustomization is kustomize's own kind; Kubernetes has no schema for it.
    mapfile -t manifests < <(find deploy/kubernetes -name '*.yaml' ! -name kustomization.yaml | sort)
    passes "kubernetes, together" "$tools/bin/python" deploy/check/manifests.py deploy/kubernetes
    cp -r deploy/kubernetes "$work/kubernetes"
    sed -i 's|^grace = "75s"$|grace = "90s"|' "$work/kubernetes/umavez.toml"
    refuses "kubernetes, together" "a drain may take 105 s" "$tools/bin/python" deploy/check/manifests.py "$work/kubernetes"
    sed -i 's|path: /webhooks$|path: /|' "$work/kubernetes/ingress.yaml"
    sed -i '/^secret = .*reminders"/d' "$work/kubernetes/umavez.toml"
    refuses "kubernetes, together" "publishes pix-reminder, unsigned" "$tools/bin/python" deploy/check/manifests.py "$work/kubernetes"
    # The oldest that is supported here, and the newest that there is a schema for.
    for version in 1.30 1.37; do
        local check=("$tools/bin/kubernetes-validate" --strict --no-warn --kubernetes-version "$version")
        passes "kubernetes $version" "${check[@]}" "${manifests[@]}"
        sed 's|runAsUser: 65532|runAsUser: nobody|' deploy/kubernetes/deployment.yaml >"$work/type.yaml"
        refuses "kubernetes $version" nobody "${check[@]}" "$work/type.yaml"
        sed 's|maxUnavailable: 1|maxUnawailable: 1|' deploy/kubernetes/disruption.yaml >"$work/field.yaml"
        refuses "kubernetes $version" maxUnawailable "${check[@]}" "$work/field.yaml"
    done
}

materials() {
    local check=("$tools/bin/python" deploy/check/materials.py)
    deploy/sbom.py >"$work/sbom.json"
    passes "bill of materials" "${check[@]}" "$work/sbom.json"
    deploy/sbom.py | cmp -s - "$work/sbom.json" || fail "bill of materials: made twice, it differs"
    sed 's|"alg": "SHA-256"|"alg": "SHA-257"|' "$work/sbom.json" >"$work/broken.json"
    refuses "bill of materials" SHA-257 "${check[@]}" "$work/broken.json"
}

unit() {
    if ! command -v systemd-analyze >/dev/null; then
        echo "systemd-analyze is not installed: the unit is not checked here (package systemd)"
        return
    fi
    # The program need not be installed for its unit to be right.
    sed 's|/usr/local/bin/umavez|/bin/true|' deploy/umavez.service >"$work/umavez.service"
    cp deploy/umavez.socket "$work/"
    for unit in umavez.service umavez.socket; do
        passes "$unit" systemd-analyze verify --man=no "$work/$unit"
        if grep . "$work/log"; then fail "$unit: systemd has something to say"; fi
    done
    # RestartPreventExitStatus looks at the main process alone: a wrong configuration would start for ever.
    if grep -n '^ExecStartPre=' deploy/umavez.service; then fail "umavez.service: leave refusing to the main process"; fi
    # Exposure 0 (shut in) to 10: a setting that is dropped shows.
    passes "umavez.service's hardening" systemd-analyze security --offline=true --threshold=20 "$work/umavez.service"
    sed 's|^Type=notify$|Type=notifx|' "$work/umavez.service" >"$work/broken.service"
    systemd-analyze verify --man=no "$work/broken.service" >"$work/log" 2>&1 || true
    grep -q notifx "$work/log" || fail "umavez.service: a broken copy passed"
    grep -vE '^(NoNewPrivileges|ProtectSystem|SystemCallFilter|CapabilityBoundingSet)=' "$work/umavez.service" >"$work/open.service"
    refuses "umavez.service's hardening" exposure systemd-analyze security --offline=true --threshold=20 "$work/open.service"
}

install_tools
dockerfile
compose
kubernetes
materials
unit
