//! The questions of `umavez init`, one after the other; only those that no flag has answered. An answer that makes no
//! configuration is told why, and asked for again.

use std::io::{BufRead, Write};

use super::Choices;
use crate::cli::Failure;

/// Answers that are too many: whoever gives them is no person.
const TRIES_MAX: usize = 10;

/// Asks for what is missing in `choices`; `check` says what is wrong with them so far.
pub(super) fn all(
    choices: Choices,
    input: impl BufRead,
    output: impl Write,
    check: impl Fn(&Choices) -> Result<(), Failure>,
) -> Result<Choices, Failure> {
    let mut asker = Asker { input, output, check };
    let mut choices = choices;
    if choices.upstream.is_none() {
        choices = asker.ask(&choices, "Your app's URL", "http://127.0.0.1:3000", |choices, answer| {
            choices.upstream = Some(answer);
        })?;
    }
    if !choices.has_sender() {
        let question =
            "Who sends? Names from `umavez providers`, with commas; nothing for a sender of your own";
        choices = asker.ask(&choices, question, "", |choices, answer| choices.providers = listed(&answer))?;
    }
    if !choices.has_sender() {
        let question =
            "Where is the event's id? $.id in JSON, header:NAME, query:NAME or form:NAME, with commas";
        choices = asker.ask(&choices, question, "$.id", |choices, answer| choices.key = listed(&answer))?;
    }
    if !choices.hold {
        choices = asker.ask(
            &choices,
            "Does money move? Then unclear events are held for a person (y/n)",
            "n",
            |choices, answer| choices.hold = yes(&answer),
        )?;
    }
    if !choices.shadow {
        choices = asker.ask(
            &choices,
            "Only watch at first? Then copies are counted, and everything is forwarded (y/n)",
            "y",
            |choices, answer| choices.shadow = yes(&answer),
        )?;
    }
    if choices.redis.is_none() && choices.postgres.is_none() {
        choices = stores(&mut asker, choices)?;
    }
    if choices.trusted_proxies.is_empty() {
        let question =
            "What ends TLS in front of this? Addresses or networks, with commas; nothing if nothing does";
        choices =
            asker.ask(&choices, question, "", |choices, answer| choices.trusted_proxies = listed(&answer))?;
    }
    Ok(choices)
}

fn stores<I: BufRead, O: Write, C: Fn(&Choices) -> Result<(), Failure>>(
    asker: &mut Asker<I, O, C>,
    choices: Choices,
) -> Result<Choices, Failure> {
    let answer =
        asker.line("Will more than one gateway run? Then they share Redis and Postgres (y/n)", "n")?;
    if !yes(&answer) {
        return Ok(choices);
    }
    let choices = asker.ask(&choices, "Redis", "redis://127.0.0.1:6379", |choices, answer| {
        choices.redis = Some(answer);
    })?;
    let question = "Postgres; ${NAME} in it takes a password from the environment";
    asker.ask(&choices, question, "postgres://umavez@127.0.0.1/umavez", |choices, answer| {
        choices.postgres = Some(answer);
    })
}

struct Asker<I, O, C> {
    input: I,
    output: O,
    check: C,
}

impl<I: BufRead, O: Write, C: Fn(&Choices) -> Result<(), Failure>> Asker<I, O, C> {
    /// The choices with an answer put into them that passes the check.
    fn ask(
        &mut self,
        choices: &Choices,
        question: &str,
        default: &str,
        put: impl Fn(&mut Choices, String),
    ) -> Result<Choices, Failure> {
        for _ in 0..TRIES_MAX {
            let mut with = choices.clone();
            put(&mut with, self.line(question, default)?);
            match (self.check)(&with) {
                Ok(()) => return Ok(with),
                Err(Failure::Usage(why)) => self.say(&format!("{why}\n"))?,
                Err(other) => return Err(other),
            }
        }
        Err(Failure::Usage(format!("init: no answer to {question:?} that would do; say it as a flag")))
    }

    /// One answer, or the default for an empty one.
    fn line(&mut self, question: &str, default: &str) -> Result<String, Failure> {
        let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
        self.say(&format!("{question}{shown}: "))?;
        let mut line = String::new();
        let read = self.input.read_line(&mut line).map_err(broken)?;
        if read == 0 {
            return Err(Failure::Usage("init: the answers ended too soon; nothing was written".to_owned()));
        }
        let answer = line.trim();
        Ok(if answer.is_empty() { default.to_owned() } else { answer.to_owned() })
    }

    fn say(&mut self, text: &str) -> Result<(), Failure> {
        self.output.write_all(text.as_bytes()).and_then(|()| self.output.flush()).map_err(broken)
    }
}

fn broken(error: std::io::Error) -> Failure {
    Failure::Other(anyhow::Error::new(error).context("cannot talk to the terminal"))
}

fn listed(answer: &str) -> Vec<String> {
    answer.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn yes(answer: &str) -> bool {
    answer.to_lowercase().starts_with(['y', 's'])
}
