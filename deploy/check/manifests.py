"""Holds the manifests of a folder against each other and against the gateway's configuration beside them: what the
schemas can't see. Prints what doesn't fit."""

import pathlib
import sys
import tomllib

import yaml

GRACE_AFTER_S = 10  # what the gateway takes for its last settlements once its grace is over

folder = pathlib.Path(sys.argv[1])
config = tomllib.loads((folder / "umavez.toml").read_text())
objects = {}
for path in sorted(folder.glob("*.yaml")):
    for found in yaml.safe_load_all(path.read_text()):
        objects.setdefault(found["kind"], {})[found.get("metadata", {}).get("name")] = found
wrong = []


def hold(fits, what):
    if not fits:
        wrong.append(what)


def seconds(text):
    return int(text.removesuffix("s"))


deployment = objects["Deployment"]["umavez"]["spec"]
pod = deployment["template"]["spec"]
labels = deployment["template"]["metadata"]["labels"]
(container,) = pod["containers"]
ports = {port["name"]: port["containerPort"] for port in container["ports"]}
mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}

for kind, selector in [
    ("Deployment", deployment["selector"]["matchLabels"]),
    ("PodDisruptionBudget", objects["PodDisruptionBudget"]["umavez"]["spec"]["selector"]["matchLabels"]),
    ("NetworkPolicy", objects["NetworkPolicy"]["umavez"]["spec"]["podSelector"]["matchLabels"]),
    *((f"Service {name}", service["spec"]["selector"]) for name, service in objects["Service"].items()),
]:
    hold(selector.items() <= labels.items(), f"{kind}: its selector does not select the pods")

for name, service in objects["Service"].items():
    for port in service["spec"]["ports"]:
        hold(port["targetPort"] in ports, f"Service {name}: the pods have no port {port['targetPort']}")
for rule in objects["NetworkPolicy"]["umavez"]["spec"]["ingress"]:
    for port in rule["ports"]:
        hold(port["port"] in ports, f"NetworkPolicy: the pods have no port {port['port']}")
for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
    asked = container[probe]["httpGet"]
    hold(asked["port"] == "admin", f"{probe}: asks another port than the admin listener's")
    # /ready says no on every pod at once while Postgres is away.
    hold(asked["path"] == "/live", f"{probe}: asks {asked['path']}, not /live")
for listener, port in (("public", "http"), ("admin", "admin")):
    hold(config["listen"][listener].endswith(f":{ports[port]}"), f"listen.{listener} is not the port {port}")

for rule in objects["Ingress"]["umavez"]["spec"]["rules"]:
    for path in rule["http"]["paths"]:
        service = path["backend"]["service"]
        there = {port["name"] for port in objects["Service"][service["name"]]["spec"]["ports"]}
        hold(service["port"]["name"] in there, f"Ingress: {service['name']} has no such port")
        # The manifests published every path, and with them a route that nobody signed.
        prefix = path["path"].rstrip("/") + "/"
        for route in config["route"]:
            published = (route["path"] + "/").startswith(prefix)
            hold("secret" in route or not published, f"Ingress: {path['path']} publishes {route['name']}, unsigned")
target = objects["HorizontalPodAutoscaler"]["umavez"]["spec"]["scaleTargetRef"]
hold(target["name"] in objects[target["kind"]], "HorizontalPodAutoscaler: its target is not there")
hold("replicas" not in deployment, "Deployment: replicas goes against the autoscaler")

pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
needed = pause + seconds(config["listen"]["grace"]) + GRACE_AFTER_S
hold(pod["terminationGracePeriodSeconds"] > needed, f"terminationGracePeriodSeconds: a drain may take {needed} s")

given = {variable["name"] for variable in container["env"]}
text = (folder / "umavez.toml").read_text()
for variable in {part.split("}")[0] for part in text.split("${")[1:]}:
    hold(variable in given, f"umavez.toml wants {variable}, which no secret gives")
secrets = [config["listen"]["admin_token"], *(route["secret"] for route in config["route"] if "secret" in route)]
for secret in secrets:
    hold(str(pathlib.Path(secret["file"]).parent) == mounts["secrets"], f"{secret['file']} is not where secrets are")

hold(config["providers_dir"] == mounts["providers"], "providers_dir is not where the provider files are")

# The policy wanted labels that nobody was told of.
readme = (folder / "README.md").read_text()
policy = objects["NetworkPolicy"]["umavez"]["spec"]
for rule in policy["ingress"] + policy["egress"]:
    for peer in rule.get("from", []) + rule.get("to", []):
        if "namespaceSelector" not in peer:
            for label, value in peer["podSelector"]["matchLabels"].items():
                hold(f"`{label}: {value}`" in readme, f"README.md does not tell of the label {label}: {value}")

hold(pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"], "root or writable")
(kustomization,) = objects["Kustomization"].values()
present = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
hold(set(kustomization["resources"]) == present, "kustomization.yaml: its resources are not the folder's files")

if wrong:
    sys.exit("\n".join(wrong))
