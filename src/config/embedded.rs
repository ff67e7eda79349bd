//! The configuration of a gateway without a file: one route, embedded stores.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::problem::{ConfigErrors, Fault, Place, Problem, Warning};
use super::sections::DURABLE_TIMEOUT;
use super::{Config, Durable, Environment, Secret};

/// What the command line gives in place of a file.
#[derive(Clone, Debug)]
pub struct WithoutFile {
    pub upstream: String,
    pub provider: String,
    /// Who signs; without it signatures are not checked.
    pub secret: Option<Secret>,
    pub listen: Option<SocketAddr>,
    pub admin: Option<SocketAddr>,
    /// The durable store's file.
    pub data: PathBuf,
}

/// The variable that the written-out file below takes its secret from.
const SECRET: &str = "UMAVEZ_SECRET";

impl Config {
    /// One route, named after its provider, that matches every path and keeps its events in `data`. It is the
    /// file an operator would write, and goes the same way.
    pub fn without_file(given: &WithoutFile) -> Result<(Self, Vec<Warning>), ConfigErrors> {
        let text = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut file = format!("[upstream]\nurl = {}\n", text(&given.upstream));
        file.push_str("[listen]\n");
        for (name, address) in [("public", given.listen), ("admin", given.admin)] {
            if let Some(address) = address {
                file.push_str(&format!("{name} = \"{address}\"\n"));
            }
        }
        let provider = text(&given.provider);
        file.push_str(&format!(
            "[[route]]\nname = {provider}\nprovider = {provider}\npath = \"/{{*rest}}\"\n"
        ));
        let mut env = Environment::new();
        if let Some(secret) = &given.secret {
            file.push_str(&format!("secret = \"${{{SECRET}}}\"\n"));
            env.insert(SECRET.to_owned(), secret.expose().to_owned());
        }
        let (mut config, warnings) = Self::parse(Path::new(""), &file, &env).map_err(as_arguments)?;
        config.durable = Durable::Sqlite { path: given.data.clone(), timeout: DURABLE_TIMEOUT };
        let place = Place { file: "the command line".to_owned(), at: None };
        let mut warnings: Vec<Warning> =
            warnings.into_iter().map(|warning| Warning { place: place.clone(), ..warning }).collect();
        let unsigned = match &given.secret {
            Some(_) => "what it did not sign is answered with 401",
            None => "what has the key of another is answered as a copy",
        };
        let text = format!(
            "whatever is posted, to any path, counts as sent by {}: {unsigned}; a file gives the route a path of its own",
            given.provider
        );
        warnings.push(Warning { place, field: "--provider".to_owned(), text });
        Ok((config, warnings))
    }
}

/// Problems of the written-out file as problems of the arguments that it was written from.
fn as_arguments(errors: ConfigErrors) -> ConfigErrors {
    let mut problems: Vec<Problem> = Vec::new();
    for problem in errors.0 {
        let argument = match problem.field.rsplit('.').next().unwrap_or_default() {
            "url" | "upstream" => "--upstream",
            "provider" | "name" => "--provider",
            "secret" => "--secret-env",
            "public" => "--listen",
            "admin" | "admin_token" => "--admin",
            _ => "",
        };
        // An unknown provider is also an odd name, and a wrong upstream is also a missing one: once is enough.
        if problems.iter().any(|earlier| earlier.field == argument) {
            continue;
        }
        let mend = match argument {
            "--admin" => "listen on 127.0.0.1, or write a configuration file with an admin_token".to_owned(),
            _ => problem.fault.mend,
        };
        let place = Place { file: "the command line".to_owned(), at: None };
        problems.push(Problem { place, field: argument.to_owned(), fault: Fault { mend, ..problem.fault } });
    }
    ConfigErrors(problems)
}
