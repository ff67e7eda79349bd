//! A file system that hangs, and who must not wait for it. A pipe under the file's name hangs as long as the story wants.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;

use super::app::App;
use super::pki::{Authority, Folder};
use crate::support::{Delivery, Gateway, ORDERS, eventually, order};

/// Opens without waiting for a reader (Linux).
const NONBLOCK: i32 = 0o4000;

/// A file that can't be read to its end.
pub(crate) struct Stalled(PathBuf);

/// Whoever reads it, waiting.
pub(crate) struct Reading(File);

impl Stalled {
    /// Takes the place of what has this name.
    pub(crate) fn put(folder: &Folder, name: &str) -> Self {
        let (path, new) = (folder.path().join(name), folder.path().join(format!("{name}.new")));
        assert!(Command::new("mkfifo").arg(&new).status().unwrap().success());
        std::fs::rename(&new, &path).unwrap();
        Self(path)
    }

    /// The first who reads it gets this.
    pub(crate) fn given(&self, text: &str) -> JoinHandle<()> {
        let (path, text) = (self.0.clone(), text.to_owned());
        std::thread::spawn(move || {
            OpenOptions::new().write(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
        })
    }

    /// Waits for somebody who reads it.
    pub(crate) async fn reader(&self) -> Reading {
        let mut opened = None;
        eventually("somebody reads the file", async || {
            opened = OpenOptions::new().write(true).custom_flags(NONBLOCK).open(&self.0).ok();
            opened.is_some()
        })
        .await;
        Reading(opened.unwrap())
    }
}

impl Reading {
    /// He gets this, and waits no more.
    pub(crate) fn give(mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }
}

/// After certificates had been read again, the next request to an app read the system's roots on the thread that served
/// it, and every other request of that thread waited for them.
#[tokio::test]
async fn the_systems_roots_are_read_beside_the_threads_that_serve() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = App::showing(&authority.issue(&["localhost", "127.0.0.1"]), &[b"http/1.1"]).await;
    let port = app.address.port();
    let pair = folder.pair("gateway", &authority.issue(&["gateway"]));
    let roots = Stalled::put(&folder, "system.pem");
    let looked = roots.given(&authority.pem);
    let gateway = Gateway::in_front_of_url(&format!("https://localhost:{port}"))
        .table(&format!("client_certificate = {pair}"))
        .route(ORDERS)
        .route(&format!(
            "[[route]]\nname = \"apart\"\npath = \"/apart\"\nkey = [\"$.id\"]\nupstream = \"https://127.0.0.1:{port}\""
        ))
        .env("SSL_CERT_FILE", &folder.path().join("system.pem").display().to_string())
        .listen("workers = 1")
        .start()
        .await;
    looked.join().unwrap();
    assert_eq!(gateway.send(&order("a")).await.status, 200);
    folder.pair("gateway", &authority.issue(&["gateway"]));
    let reading = roots.reader().await;
    let apart = Delivery::json("/apart", r#"{"id":"b"}"#);
    assert_eq!(gateway.send(&apart).await.status, 200, "what was in use is in use");
    reading.give(&authority.pem);
    eventually("a reload", async || gateway.logs().contains("certificates were read again")).await;
    assert_eq!(gateway.send(&order("c")).await.status, 200);
}
