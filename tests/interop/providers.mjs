// What each provider's own library does with a delivery: sign it, or verify it. Nothing here is ours but the glue; where
// a library signs nothing, the text that its documentation tells is signed with the platform's primitives.

import { createHash, createHmac, createSign, generateKeyPairSync, sign as signBytes, webcrypto } from "node:crypto";
import { createRequire } from "node:module";
import https from "node:https";

import { sign as octokitSign, verify as octokitVerify } from "@octokit/webhooks-methods";
import { LinearWebhookClient } from "@linear/sdk/webhooks";
import { WhatsAppAPI } from "whatsapp-api-js";
import { Webhook as StandardWebhook } from "standardwebhooks";
import { Webhook as SvixWebhook } from "svix";
import Stripe from "stripe";
import { Resend } from "resend";
import { verifyKey } from "discord-interactions";
import "@shopify/shopify-api/adapters/node";
import { shopifyApi, ApiVersion } from "@shopify/shopify-api";

// Node.js 18 has it, but not everywhere.
globalThis.crypto ??= webcrypto;

const require = createRequire(import.meta.url);
const twilio = require("twilio/lib/webhooks/webhooks.js");
const { isValidSlackRequest } = require("@slack/bolt/dist/receivers/verify-request.js");
const { Signature: HubSpot } = require("@hubspot/api-client/lib/src/utils/signature.js");
const { EventWebhook } = require("@sendgrid/eventwebhook");
const Adyen = require("@adyen/api-library/lib/src/utils/hmacValidator.js").default;
const { Paddle } = require("@paddle/paddle-node-sdk");
const { WebhooksHelper: Square } = require("square/dist/cjs/utilities/webhooksHelper.js");
const { WebhookSignatureValidator: MercadoPago } = require("mercadopago/dist/utils/webhook/index.js");
const SnsValidator = require("sns-validator");
const jwt = require("jsonwebtoken");

const hmac = (hash, key, text, form) => createHmac(hash, key).update(text).digest(form);
const seconds = () => Math.floor(Date.now() / 1000);
const secret = "interop-secret-0123456789";
const base64Secret = Buffer.from("interop-standard-webhooks-key-012").toString("base64");
const json = { "Content-Type": "application/json" };
const text = (delivery) => delivery.body.toString("utf8");

/** A body that any provider could send, with a list to cut in it: spelled as no serialiser of ours would. */
const batch = (ids) => {
    const item = (id) => `{ "id" : "${id}", "n":1.50e0,"s":"\\u00e9\\/ é 😀", "big":12345678901234567890}`;
    return `{"object":"event" , "webhookTimestamp":${Date.now()},\n "batch":[${ids.map(item).join(" ,\n")}] }`;
};

/** Keys that the provider alone would have; new in every run. */
const ed25519 = generateKeyPairSync("ed25519");
const p256 = generateKeyPairSync("ec", { namedCurve: "P-256" });
const rsa = generateKeyPairSync("rsa", { modulusLength: 2048 });
const pem = (pair) => pair.publicKey.export({ type: "spki", format: "pem" });
const spki = (pair) => pair.publicKey.export({ type: "spki", format: "der" });

const discordPublic = spki(ed25519).subarray(-32).toString("hex");
const stripe = new Stripe("sk_test_interop");
const whatsapp = new WhatsAppAPI({ token: "t", appSecret: secret, webhookVerifyToken: "v", v: "v24.0" });
const shopify = shopifyApi({
    apiKey: "k", apiSecretKey: secret, scopes: ["read_orders"], hostName: "hooks.example.com",
    apiVersion: ApiVersion.January26 ?? Object.values(ApiVersion).at(-2), isEmbeddedApp: false, logger: { level: 0 },
});
const paddle = new Paddle("interop");

/** `sns-validator` fetches the certificate; it gets this run's key instead. */
const fetchIsPatched = () => {
    https.get = (url, answered) => {
        const handlers = {};
        const response = { statusCode: 200, on: (event, handler) => ((handlers[event] = handler), response) };
        setImmediate(() => (answered(response), handlers.data(pem(rsa)), handlers.end()));
        return { on() {} };
    };
};

const crc32 = (bytes) => {
    let crc = ~0;
    for (const byte of bytes) {
        crc ^= byte;
        for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (0xedb88320 & -(crc & 1));
    }
    return ~crc >>> 0;
};

const hub = (value) => ({ "X-Hub-Signature-256": value });
const standard = (Library, prefix) => ({
    secret: `whsec_${base64Secret}`,
    sign: ({ body, stale }) => {
        const [id, at] = ["msg_interop", new Date(Date.now() - (stale ? 3_600_000 : 0))];
        const value = new Library(`whsec_${base64Secret}`).sign(id, at, body);
        const stamp = String(Math.floor(at.getTime() / 1000));
        return { ...json, [`${prefix}-id`]: id, [`${prefix}-timestamp`]: stamp, [`${prefix}-signature`]: value };
    },
    verify: (delivery) => Boolean(new Library(`whsec_${base64Secret}`).verify(text(delivery), delivery.headers)),
});

const twilioForm = (params, signed) => ({
    body: new URLSearchParams(params).toString(),
    headers: { "Content-Type": "application/x-www-form-urlencoded", "X-Twilio-Signature": signed },
});
const twilioParams = (delivery) => Object.fromEntries(new URLSearchParams(text(delivery)));
const twilioChecks = (delivery) => {
    const algorithm = twilio.getSignatureAlgorithm(delivery.headers["x-twilio-webhooks-signature-settings"]);
    const value = delivery.headers["x-twilio-signature"];
    return delivery.url.includes("bodySHA256")
        ? twilio.validateRequestWithBody(secret, value, delivery.url, text(delivery), algorithm)
        : twilio.validateRequest(secret, value, delivery.url, twilioParams(delivery), algorithm);
};

const snsFields = ["Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"];
const sns = (version) => ({
    provider: "aws-sns",
    library: "sns-validator",
    publicKey: pem(rsa),
    body: (id) => JSON.stringify({
        Type: "Notification", MessageId: id, TopicArn: "arn:aws:sns:us-east-1:000000000000:interop",
        Subject: "ação", Message: "{\"a\":\"é\\n\"}", Timestamp: new Date().toISOString(), SignatureVersion: version,
        SigningCertURL: "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-interop.pem",
    }),
    sign: ({ body }) => {
        const message = JSON.parse(body);
        const signer = createSign(version === "1" ? "RSA-SHA1" : "RSA-SHA256");
        for (const field of snsFields.filter((field) => field in message)) signer.update(`${field}\n${message[field]}\n`);
        message.Signature = signer.sign(rsa.privateKey, "base64");
        return { body: JSON.stringify(message), headers: { "Content-Type": "text/plain; charset=UTF-8" } };
    },
    mutate: (body) => body.replace('"Message":"', '"Message":"x'),
    verify: (delivery) => new Promise((resolve) => {
        fetchIsPatched();
        new SnsValidator().validate(JSON.parse(text(delivery)), (error) => resolve(!error));
    }),
});

const adyenKey = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056";
const adyen = new Adyen();
const adyenItem = (id) => {
    const item = {
        additionalData: {}, amount: { currency: "EUR", value: 1000 }, eventCode: "AUTHORISATION", eventDate: "2026-08-10",
        merchantAccountCode: "Loja:Exemplo", merchantReference: "ação", pspReference: id, success: "true",
    };
    item.additionalData.hmacSignature = adyen.calculateHmac(item, adyenKey);
    return { NotificationRequestItem: item };
};

const meta = (sign) => ({
    provider: "meta",
    secret,
    native: (ids) => `{"object":"whatsapp_business_account" ,"entry":[{"id":"10","changes":[{"field":"messages","value":{` +
        `"messaging_product":"whatsapp","metadata":{"phone_number_id":"11"},"contacts":[{"wa_id":"55"}],"messages":[` +
        ids.map((id) => `{"from":"55","id":"${id}", "timestamp":"1","text":{"body":"a\\u00e7\\u00e3o"},"type":"text"}`).join(", ") +
        `]}}]}]}`,
    sign,
});

const hubspotItems = (ids) => JSON.stringify(ids.map((id) => (
    { eventId: 100, subscriptionId: 7, portalId: 1, objectId: id, occurredAt: 1786363200000, attemptNumber: 0, name: "ação" }
)), null, 1);
const hubspot = (version) => ({
    provider: "hubspot", library: "@hubspot/api-client", secret, native: hubspotItems, numeric: true,
    sign: ({ body, url, stale }) => {
        const timestamp = Date.now() - (stale ? 3_600_000 : 0);
        const value = HubSpot.getSignature("POST", version, { clientSecret: secret, requestBody: body, url, timestamp });
        const name = version === "v3" ? "X-HubSpot-Signature-v3" : "X-HubSpot-Signature";
        return {
            ...json, [name]: value, "X-HubSpot-Signature-Version": version, "X-HubSpot-Request-Timestamp": String(timestamp),
        };
    },
    ages: version === "v3",
    verify: (delivery) => HubSpot.isValid({
        method: "POST", signatureVersion: version, clientSecret: secret, requestBody: text(delivery), url: delivery.url,
        signature: delivery.headers[version === "v3" ? "x-hubspot-signature-v3" : "x-hubspot-signature"],
        timestamp: Number(delivery.headers["x-hubspot-request-timestamp"]),
    }),
});

/**
 * Each way of signing. `sign` gives headers, or body and headers; `verify` tells what the library says of a delivery.
 * `native(ids)` makes the provider's own batch; without it, `batch(ids)` is cut under the provider's signature.
 * `ages` is set where both sides hold the stamp to the clock. `whole` is set where nobody but the provider can sign.
 */
export const ways = {
    stripe: {
        library: "stripe", secret, ages: true,
        sign: ({ body, stale }) => ({
            ...json,
            "Stripe-Signature": stripe.webhooks.generateTestHeaderString({
                payload: body, secret, timestamp: seconds() - (stale ? 3600 : 0),
            }),
        }),
        verify: (delivery) => Boolean(
            stripe.webhooks.constructEvent(delivery.body, delivery.headers["stripe-signature"], secret)),
    },
    svix: { library: "svix", ages: true, ...standard(SvixWebhook, "svix") },
    "standard-webhooks": { library: "standardwebhooks", ages: true, ...standard(StandardWebhook, "webhook") },
    resend: {
        library: "resend", ages: true, ...standard(SvixWebhook, "svix"),
        verify: ({ headers, body }) => Boolean(new Resend("re_interop").webhooks.verify({
            payload: body.toString("utf8"), webhookSecret: `whsec_${base64Secret}`,
            headers: { id: headers["svix-id"], timestamp: headers["svix-timestamp"], signature: headers["svix-signature"] },
        })),
    },
    github: {
        library: "@octokit/webhooks-methods", secret,
        sign: async ({ body, id }) => ({
            ...json, ...hub(await octokitSign(secret, body)), "X-GitHub-Hook-ID": "1", "X-GitHub-Delivery": id,
        }),
        verify: (delivery) => octokitVerify(secret, text(delivery), delivery.headers["x-hub-signature-256"]),
    },
    meta: {
        ...meta(({ body }) => ({ ...json, ...hub(`sha256=${hmac("sha256", secret, body, "hex")}`) })),
        library: "whatsapp-api-js (third party)",
        verify: (delivery) => whatsapp.verifyRequestSignature(text(delivery), delivery.headers["x-hub-signature-256"]),
    },
    shopify: {
        library: "@shopify/shopify-api", secret,
        sign: ({ body, id }) => ({
            ...json, "X-Shopify-Hmac-Sha256": hmac("sha256", secret, body, "base64"), "X-Shopify-Topic": "orders/create",
            "X-Shopify-Shop-Domain": "interop.myshopify.com", "X-Shopify-API-Version": "2026-01",
            "X-Shopify-Webhook-Id": `w-${id}`, "X-Shopify-Event-Id": id,
        }),
        verify: async (delivery) => (await shopify.webhooks.validate({
            rawBody: text(delivery), rawRequest: { headers: delivery.headers, url: "/", method: "POST" }, rawResponse: {},
        })).valid,
    },
    slack: {
        library: "@slack/bolt", secret, ages: true,
        sign: ({ body, stale }) => {
            const stamp = String(seconds() - (stale ? 3600 : 0));
            const value = `v0=${hmac("sha256", secret, `v0:${stamp}:${body}`, "hex")}`;
            return { ...json, "X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": value };
        },
        verify: (delivery) => isValidSlackRequest({
            signingSecret: secret, body: text(delivery),
            headers: {
                "x-slack-signature": delivery.headers["x-slack-signature"],
                "x-slack-request-timestamp": Number(delivery.headers["x-slack-request-timestamp"]),
            },
        }),
        body: (id) => JSON.stringify({ type: "event_callback", event_id: id, event: { text: "ação" } }),
    },
    paddle: {
        library: "@paddle/paddle-node-sdk", secret, ages: true,
        sign: ({ body, stale }) => {
            const stamp = seconds() - (stale ? 3600 : 0);
            return { ...json, "Paddle-Signature": `ts=${stamp};h1=${hmac("sha256", secret, `${stamp}:${body}`, "hex")}` };
        },
        verify: (delivery) => paddle.webhooks.isSignatureValid(text(delivery), secret, delivery.headers["paddle-signature"]),
        body: (id) => JSON.stringify({ event_id: id, data: { nome: "ação" } }),
    },
    square: {
        library: "square", secret,
        sign: ({ body, url }) => ({
            ...json, "x-square-hmacsha256-signature": hmac("sha256", secret, url + body, "base64"),
        }),
        verify: (delivery) => Square.isValidWebhookEventSignature(
            text(delivery), delivery.headers["x-square-hmacsha256-signature"], secret, delivery.url),
        body: (id) => JSON.stringify({ merchant_id: "M", event_id: id, data: { nome: "ação" } }),
    },
    linear: {
        library: "@linear/sdk", secret, ages: true,
        sign: ({ body, id }) => ({
            ...json, "Linear-Signature": hmac("sha256", secret, body, "hex"), "Linear-Delivery": id,
        }),
        verify: (delivery) => new LinearWebhookClient(secret).verify(delivery.body, delivery.headers["linear-signature"]),
        body: (id, stale) => JSON.stringify({ id, nome: "ação", webhookTimestamp: Date.now() - (stale ? 9 * 3_600_000 : 0) }),
    },
    "hubspot-v1": hubspot("v1"),
    "hubspot-v2": hubspot("v2"),
    "hubspot-v3": hubspot("v3"),
    "adyen-items": {
        provider: "adyen", library: "@adyen/api-library", secret: adyenKey,
        native: (ids) => `{ "live":"false","notificationItems":[${ids.map((id) => JSON.stringify(adyenItem(id))).join(" , ")}]}`,
        sign: () => ({ ...json }),
        mutate: (body) => body.replace('"value":1000', '"value":1001'),
        verify: (delivery) => JSON.parse(text(delivery)).notificationItems.every(
            ({ NotificationRequestItem: item }) => adyen.validateHMAC(item, adyenKey)),
    },
    "adyen-platform": {
        provider: "adyen", library: "@adyen/api-library", secret: adyenKey,
        sign: ({ body }) => ({
            ...json, "HmacSignature": createHmac("sha256", Buffer.from(adyenKey, "hex")).update(body).digest("base64"),
        }),
        verify: (delivery) => adyen.validateHMACSignature(adyenKey, delivery.headers.hmacsignature, text(delivery)),
    },
    "twilio-form": {
        provider: "twilio", library: "twilio", secret, uncut: true,
        body: (id) => new URLSearchParams(
            { MessageSid: id, AccountSid: "AC1", MessageStatus: "sent", Body: "ação & +1", Empty: "" }).toString(),
        sign: ({ body, url }) => twilioForm(
            new URLSearchParams(body), twilio.getExpectedTwilioSignature(secret, url, Object.fromEntries(new URLSearchParams(body)))),
        mutate: (body) => body.replace("MessageStatus=sent", "MessageStatus=read"),
        verify: twilioChecks,
    },
    "twilio-json": {
        provider: "twilio", library: "twilio", secret, whole: true,
        query: (body) => `?bodySHA256=${createHash("sha256").update(body).digest("hex")}`,
        sign: ({ url }) => ({ ...json, "X-Twilio-Signature": twilio.getExpectedTwilioSignature(secret, url, {}) }),
        verify: twilioChecks,
    },
    "twilio-shared-key": {
        provider: "twilio", library: "twilio", secret, uncut: true,
        body: (id) => new URLSearchParams({ MessageSid: id, AccountSid: "AC1", MessageStatus: "sent" }).toString(),
        sign: ({ body, url }) => {
            const params = Object.fromEntries(new URLSearchParams(body));
            const signed = twilioForm(params, twilio.getExpectedTwilioSignature(secret, url, params, "HMAC_SHA256"));
            signed.headers["X-Twilio-Webhooks-Signature-Settings"] = "key=webhooks_sharedkey_1,algorithm=HMAC_SHA256";
            return signed;
        },
        mutate: (body) => body.replace("MessageStatus=sent", "MessageStatus=read"),
        verify: twilioChecks,
    },
    mercadopago: {
        library: "mercadopago", secret, query: () => "?data.id=ABC123&type=payment",
        sign: ({ wrong }) => {
            const [ts, id] = [String(Date.now()), "req-1"];
            const manifest = `id:${wrong ? "other" : "abc123"};request-id:${id};ts:${ts};`;
            return { ...json, "x-request-id": id, "x-signature": `ts=${ts},v1=${hmac("sha256", secret, manifest, "hex")}` };
        },
        // The body is not signed: what changes is the resource that the URL names.
        mutateSignature: true,
        verify: (delivery) => {
            const dataId = new URL(delivery.url).searchParams.get("data.id").toLowerCase();
            MercadoPago.validate({
                secret, dataId, xSignature: delivery.headers["x-signature"], xRequestId: delivery.headers["x-request-id"],
            });
            return true;
        },
    },
    sendgrid: {
        library: "@sendgrid/eventwebhook", publicKey: spki(p256).toString("base64"), whole: true,
        native: (ids) => JSON.stringify(ids.map((id) => ({ sg_event_id: id, email: "ação@example.com" }))) + "\r\n",
        sign: ({ body }) => {
            const stamp = String(seconds());
            const value = signBytes("sha256", Buffer.from(stamp + body), p256.privateKey).toString("base64");
            return {
                ...json, "X-Twilio-Email-Event-Webhook-Timestamp": stamp, "X-Twilio-Email-Event-Webhook-Signature": value,
            };
        },
        verify: ({ headers, body }) => {
            const library = new EventWebhook();
            const key = library.convertPublicKeyToECDSA(spki(p256).toString("base64"));
            return library.verifySignature(key, body, headers["x-twilio-email-event-webhook-signature"],
                headers["x-twilio-email-event-webhook-timestamp"]);
        },
    },
    discord: {
        library: "discord-interactions", publicKey: discordPublic, whole: true,
        body: (id) => JSON.stringify(
            { application_id: "1", type: 1, event: { type: "ENTITLEMENT_CREATE", timestamp: "2026-08-10T11:59:58.1", data: { id } } }),
        sign: ({ body }) => {
            const stamp = String(seconds());
            const value = signBytes(null, Buffer.from(stamp + body), ed25519.privateKey).toString("hex");
            return { ...json, "X-Signature-Timestamp": stamp, "X-Signature-Ed25519": value };
        },
        verify: ({ headers, body }) =>
            verifyKey(body, headers["x-signature-ed25519"], headers["x-signature-timestamp"], discordPublic),
    },
    "aws-sns-v1": { ...sns("1"), uncut: true },
    "aws-sns-v2": { ...sns("2"), uncut: true },
    paypal: {
        library: "none: PayPal's documented check", publicKey: pem(rsa), webhookId: "WH-INTEROP", whole: true,
        body: (id) => JSON.stringify({ id, event_type: "PAYMENT.CAPTURE.COMPLETED", resource: { nome: "ação" } }),
        sign: ({ body }) => {
            const [id, time] = ["t-1", new Date().toISOString()];
            const signed = `${id}|${time}|WH-INTEROP|${crc32(Buffer.from(body))}`;
            return {
                ...json, "paypal-auth-algo": "SHA256withRSA", "paypal-transmission-id": id, "paypal-transmission-time": time,
                "paypal-transmission-sig": createSign("SHA256").update(signed).sign(rsa.privateKey, "base64"),
            };
        },
        verify: null,
    },
    evolution: {
        library: "jsonwebtoken (as Evolution itself)", secret, uncut: true, ages: true,
        body: (id) => JSON.stringify({ event: "messages.upsert", instance: "loja", data: { key: { id } } }),
        sign: ({ stale, wrong }) => {
            const iat = seconds() - (stale ? 36_000 : 0);
            const token = jwt.sign({ iat, exp: iat + 600, app: "evolution", action: "webhook" }, wrong ? "other" : secret);
            return { ...json, Authorization: `Bearer ${token}` };
        },
        // The token says who sends, not what.
        mutateSignature: true,
        verify: (delivery) => Boolean(jwt.verify(delivery.headers.authorization.slice("Bearer ".length), secret)),
    },
};

export { batch };
