//! What the demo sends, and what must come of it.

use std::net::SocketAddr;
use std::time::Duration;

use super::toys::{Answered, App, Mood, Sent, send};
use super::{HOTMART_TOKEN, META_SECRET};

/// How long the provider waits before its second copy.
const APART: Duration = Duration::from_millis(40);

/// One row of the table.
pub(super) struct Line {
    pub(super) sent: String,
    pub(super) received: String,
    pub(super) answered: String,
    pub(super) verdict: String,
    pub(super) as_promised: bool,
}

/// What a delivery must come to.
struct Promise {
    /// How often the app is called, and a text that the last call must hold.
    received: usize,
    holds: &'static str,
    status: u16,
    verdict: &'static str,
}

/// Plays every scene against a gateway that serves.
pub(super) async fn play(gateway: SocketAddr, app: &App) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    let mut scene = async |what: &str, sent: Sent, promise: Promise| -> anyhow::Result<()> {
        let before = app.received();
        let answered = send(gateway, sent).await?;
        lines.push(line(what, app, before, &answered, &promise));
        Ok(())
    };
    let first = |received, holds| Promise { received, holds, status: 200, verdict: "first" };
    let copy = || Promise { received: 0, holds: "", status: 200, verdict: "duplicate" };

    scene("Hotmart: purchase approved", purchase("8f1c", 1), first(1, "8f1c")).await?;
    scene("  its retry, creation_date changed", purchase("8f1c", 2), copy()).await?;
    scene("WhatsApp: messages A and B", batch(&["A", "B"]), first(1, "wamid.A wamid.B")).await?;
    scene("  a batch with B again, and C", batch(&["B", "C"]), first(1, "wamid.C")).await?;
    app.mood(Mood::Failing);
    let failing = Promise { received: 1, holds: "77aa", status: 500, verdict: "first" };
    scene("Hotmart: a purchase, but the app fails", purchase("77aa", 1), failing).await?;
    app.mood(Mood::Well);
    scene("  the provider's retry", purchase("77aa", 2), first(1, "77aa")).await?;
    scene("  and one more copy", purchase("77aa", 3), copy()).await?;
    app.mood(Mood::Slow);
    lines.extend(parallel(gateway, app).await?);
    app.mood(Mood::Well);
    Ok(lines)
}

/// Two copies 40 ms apart, while the app is still busy with the first.
async fn parallel(gateway: SocketAddr, app: &App) -> anyhow::Result<[Line; 2]> {
    let before = app.received();
    let (one, two) = tokio::join!(send(gateway, purchase("c0de", 1)), async {
        tokio::time::sleep(APART).await;
        send(gateway, purchase("c0de", 1)).await
    });
    let promise = |verdict| Promise { received: 1, holds: "c0de", status: 200, verdict };
    let first = line("Hotmart: a purchase while the app is slow", app, before, &one?, &promise("first"));
    let mut second = line("  its copy 40 ms later", app, before, &two?, &promise("duplicate"));
    second.received = "nothing (it waited)".to_owned();
    Ok([first, second])
}

fn line(sent: &str, app: &App, before: usize, answered: &Answered, promise: &Promise) -> Line {
    let calls = app.received() - before;
    let last = if calls > 0 { app.last() } else { String::new() };
    let replayed = if answered.replayed { ", replayed" } else { "" };
    Line {
        sent: sent.to_owned(),
        received: if calls > 0 { last.clone() } else { "nothing".to_owned() },
        answered: format!("{} {}{replayed}", answered.status, answered.body),
        verdict: answered.verdict.clone(),
        as_promised: calls == promise.received
            && last.contains(promise.holds)
            && answered.status == promise.status
            && answered.verdict == promise.verdict
            && answered.replayed == (promise.verdict == "duplicate"),
    }
}

fn purchase(id: &str, creation_date: u32) -> Sent {
    let body = format!(
        r#"{{"id":"{id}","creation_date":{creation_date},"event":"PURCHASE_APPROVED","version":"2.0.0","data":{{"purchase":{{"transaction":"HP1"}}}}}}"#
    );
    Sent { path: "/webhooks/hotmart", headers: vec![("x-hotmart-hottok", HOTMART_TOKEN.to_owned())], body }
}

fn batch(messages: &[&str]) -> Sent {
    let items: Vec<String> = messages
        .iter()
        .map(|id| {
            format!(r#"{{"from":"5511999990000","id":"wamid.{id}","type":"text","text":{{"body":"oi"}}}}"#)
        })
        .collect();
    let body = format!(
        r#"{{"object":"whatsapp_business_account","entry":[{{"id":"1","changes":[{{"field":"messages","value":{{"messaging_product":"whatsapp","metadata":{{"phone_number_id":"10"}},"messages":[{}]}}}}]}}]}}"#,
        items.join(",")
    );
    let signature = super::toys::signature(META_SECRET, body.as_bytes());
    Sent { path: "/webhooks/meta", headers: vec![("x-hub-signature-256", signature)], body }
}
