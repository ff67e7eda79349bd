// Holds our signatures against the providers' own libraries, through a real gateway: what theirs sign passes, what is
// changed on the way is refused, and what the gateway cut and signed again passes theirs.
//
//   node main.mjs UMAVEZ PROVIDERS VECTORS          checks; also that theirs still say of VECTORS what is written there
//   node main.mjs UMAVEZ PROVIDERS VECTORS --make   checks, and writes the deliveries to VECTORS

import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { batch, ways } from "./providers.mjs";

const [umavez, providers, vectorsFile, make] = process.argv.slice(2);
const PUBLIC = "https://hooks.example.com";
const STARTS_WITHIN_MS = 30_000;

/** The app: keeps what it received last. */
let received = [];
const app = http.createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
        received.push({ headers: request.headers, body: Buffer.concat(chunks), target: request.url });
        response.end("ok");
    });
});

const listening = (server) => new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server.address().port)));

/** The provider's file with an item rule that finds a list, so that every signature can be held to a cut body. */
const cuttable = (name, provider) => {
    const file = readFileSync(join(providers, `${provider}.toml`), "utf8");
    const top = file.split(/^\[/m)[0].replace(/^name = .*$/m, `name = "${name}"`)
        .replace(/^(redact|envelope|json_in_form|strip_headers) = .*$/gm, "");
    const signature = file.split(/^(?=\[)/m).filter((table) => /^\[+signature/.test(table)).join("");
    return `${top}\n${signature}\n[[item]]\npath = "$.batch[*]"\nkey = ["@.id"]\n`;
};

const routes = (folder) => {
    let toml = `providers_dir = "${folder}/providers"\n`;
    for (const [name, way] of Object.entries(ways)) {
        const provider = way.provider ?? name;
        const credentials = [];
        if (way.secret) credentials.push(`secret = ${JSON.stringify(way.secret)}`);
        if (way.publicKey) credentials.push(`public_key = ${JSON.stringify(way.publicKey)}`);
        if (way.webhookId) credentials.push(`webhook_id = ${JSON.stringify(way.webhookId)}`);
        const route = (path, provider) =>
            `\n[[route]]\nname = "${path}"\npath = "/${path}"\nprovider = "${provider}"\n` +
            `public_url = "${PUBLIC}/${path}"\n${credentials.join("\n")}\n`;
        writeFileSync(join(folder, "providers", `${name}.toml`), cuttable(`${name}-cut`, provider));
        toml += route(name, provider) + route(`${name}-cut`, `${name}-cut`);
    }
    return toml;
};

/** A gateway on free ports, with the stores in the process and beside its file. */
const gateway = async (appPort) => {
    const folder = mkdtempSync(join(tmpdir(), "umavez-interop-"));
    mkdirSync(join(folder, "providers"));
    const config = `[listen]\npublic = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\n[log]\nformat = "json"\n` +
        `[upstream]\nurl = "http://127.0.0.1:${appPort}"\n`;
    writeFileSync(join(folder, "umavez.toml"), routes(folder).replace("\n", `\n${config}`));
    const child = spawn(umavez, ["run", "--config", join(folder, "umavez.toml")], { stdio: ["ignore", "pipe", "pipe"] });
    let log = "";
    const port = await new Promise((resolve, reject) => {
        const give_up = setTimeout(() => reject(new Error(`the gateway did not listen:\n${log}`)), STARTS_WITHIN_MS);
        const read = (chunk) => {
            log += chunk;
            const found = log.match(/"listener":"public"[^\n]*?"address":"127\.0\.0\.1:(\d+)"|"address":"127\.0\.0\.1:(\d+)"[^\n]*?"listener":"public"/);
            if (found) (clearTimeout(give_up), resolve(Number(found[1] ?? found[2])));
        };
        child.stdout.on("data", read);
        child.stderr.on("data", read);
        child.on("exit", () => reject(new Error(`the gateway ended:\n${log}`)));
    });
    return { port, stop: () => (child.removeAllListeners("exit"), child.kill(), rmSync(folder, { recursive: true })) };
};

const send = (port, { target, headers, body }) => new Promise((resolve, reject) => {
    const request = http.request({ port, host: "127.0.0.1", method: "POST", path: target, headers }, (response) => {
        response.resume();
        response.on("end", () => resolve({ status: response.statusCode, verdict: response.headers.umavez }));
    });
    request.on("error", reject);
    request.end(body);
});

/** What the library says; an exception is its no. */
const theirs = async (way, delivery) => {
    try {
        return Boolean(await way.verify(delivery));
    } catch {
        return false;
    }
};

const lower = (headers) => Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));

/** A delivery as the provider would send it to `path`. */
const signed = async (name, way, path, body, how = {}) => {
    const query = way.query?.(body) ?? "";
    const made = await way.sign({ body, url: `${PUBLIC}/${path}${query}`, id: how.id ?? "e", ...how });
    const whole = made.headers ? made : { body, headers: made };
    return { ...whole, body: Buffer.from(whole.body), target: `/${path}${query}`, url: `${PUBLIC}/${path}${query}` };
};

const failures = [];
const vectors = [];
let checks = 0;
const check = (name, what, holds, detail = "") => {
    checks += 1;
    if (!holds) failures.push(`${name}: ${what} ${detail}`);
};

const keep = (name, way, delivery, good, resigned) => {
    const relevant = Object.entries(delivery.headers).map(([header, value]) => [header.toLowerCase(), String(value)]);
    vectors.push({
        name, provider: way.provider ?? name.split(":")[0], library: way.library, good, now_ms: Date.now(), secret: way.secret,
        public_key: way.publicKey, webhook_id: way.webhookId, url: delivery.url, headers: relevant,
        body: delivery.body.toString("utf8"), resigned,
    });
};

/** One way of signing through the gateway. */
const run = async (port, name, way) => {
    const sample = (id, stale) => way.body?.(id, stale) ?? way.native?.([id]) ?? batch([id]);
    const id = (n) => (way.numeric ? n : `evt-${name}-${n}`);
    const verifies = async (delivery, expected, what) => {
        if (way.verify) check(name, `${way.library} says ${expected} of ${what}`, (await theirs(way, delivery)) === expected);
    };
    const expect = async (delivery, status, what, good) => {
        received = [];
        const answer = await send(port, delivery);
        check(name, `${what} is answered ${status}`, answer.status === status, `(was ${answer.status})`);
        await verifies({ ...delivery, headers: lower(delivery.headers) }, good, what);
        keep(`${name}: ${what}`, way, delivery, good);
        check(name, `${what} ${good ? "reaches" : "does not reach"} the app`, received.length === (good ? 1 : 0));
    };

    const genuine = await signed(name, way, name, sample(id(1)), { id: id(1) });
    await expect(genuine, 200, "what theirs signed", true);
    check(name, "a whole body arrives as it was", received[0]?.body.equals(genuine.body));
    await verifies({ ...received[0], url: genuine.url }, true, "what the app received");

    const other = await signed(name, way, name, sample(id(2)), { id: id(2), wrong: true });
    const lastCharacter = (body) => body.replace(/(\w)(\W*)$/, (_, last, rest) => (last === "1" ? "2" : "1") + rest);
    const mutate = way.mutate ?? lastCharacter;
    const mutant = way.mutateSignature ? other : { ...other, body: Buffer.from(mutate(other.body.toString("utf8"))) };
    check(name, "a mutant differs", way.mutateSignature || !mutant.body.equals(other.body));
    await expect(mutant, 401, "a changed delivery", false);

    if (way.ages) {
        const stale = await signed(name, way, name, sample(id(3), true), { id: id(3), stale: true });
        await expect(stale, 401, "an old delivery", false);
    }
    if (way.uncut) return;

    // A batch of which one item was seen: cut and signed again where that can be, else whole.
    const list = way.native ?? batch;
    const path = way.native ? name : `${name}-cut`;
    const first = await signed(name, way, path, list([id(11), id(12)]), { id: "b1" });
    check(name, "a new batch is answered 200", (await send(port, first)).status === 200);
    received = [];
    const mixed = await signed(name, way, path, list([id(12), id(13)]), { id: "b2" });
    const answer = await send(port, mixed);
    check(name, "a mixed batch is answered 200", answer.status === 200, `(was ${answer.status})`);
    const cut = received[0];
    if (!cut) return check(name, "a mixed batch reaches the app", false);
    if (way.whole) {
        check(name, "a batch that can't be signed again arrives whole", cut.body.equals(mixed.body));
    } else {
        const left = cut.body.toString("utf8");
        check(name, "the item that was seen is gone", !left.includes(String(id(12))) && left.includes(String(id(13))), left);
        check(name, "the batch says that it was cut", cut.headers["umavez-removed"] === "1");
        JSON.parse(left);
        const names = Object.keys(mixed.headers).map((header) => header.toLowerCase());
        const headers = names.map((header) => [header, cut.headers[header]]);
        keep(`${name}: a batch, cut`, way, mixed, true, { body: left, headers });
    }
    await verifies({ ...cut, url: mixed.url }, true, "a batch that the gateway cut");
};

/** What the libraries say now of the deliveries that are committed, at those deliveries' clock. */
const recheck = async () => {
    const RealDate = Date;
    for (const vector of JSON.parse(readFileSync(vectorsFile, "utf8"))) {
        const way = ways[vector.name.split(":")[0]];
        // Keys of a pair are this run's own: only shared secrets can be held to what was written.
        if (!way?.verify || vector.public_key) continue;
        globalThis.Date = class extends RealDate {
            constructor(...given) {
                super(...(given.length ? given : [vector.now_ms]));
            }
            static now() {
                return vector.now_ms;
            }
        };
        const delivery = (headers, body) => ({ headers: Object.fromEntries(headers), body: Buffer.from(body), url: vector.url });
        const says = await theirs(way, delivery(vector.headers, vector.body));
        check(vector.name, `the vector is ${vector.good ? "good" : "bad"}`, says === vector.good);
        if (vector.resigned) {
            const resigned = delivery(vector.resigned.headers, vector.resigned.body);
            check(vector.name, "what was signed again is good", await theirs(way, resigned));
        }
        globalThis.Date = RealDate;
    }
};

const appPort = await listening(app);
const { port, stop } = await gateway(appPort);
try {
    for (const [name, way] of Object.entries(ways)) {
        const before = failures.length;
        await run(port, name, way);
        const library = way.library.split(" ")[0];
        let version = "";
        try {
            version = JSON.parse(readFileSync(new URL(`node_modules/${library}/package.json`, import.meta.url))).version;
        } catch {
            version = "";
        }
        console.log(`${failures.length === before ? "ok  " : "FAIL"} ${name.padEnd(18)} ${way.library} ${version}`);
    }
    if (make === "--make") writeFileSync(vectorsFile, `${JSON.stringify(vectors, null, 1)}\n`);
    await recheck();
} finally {
    stop();
    app.close();
}
console.log(`${checks} checks, ${failures.length} failed`);
for (const failure of failures) console.error(`FAILED ${failure}`);
process.exit(failures.length ? 1 : 0);
