//! The providers that we ship: an explicit list, one file each.

use std::sync::{Arc, OnceLock};

use super::schema::Provider;

macro_rules! shipped {
    ($($name:literal)*) => {
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!($name, ".toml")))),*];
    };
}

shipped! {
    "hotmart" "meta" "evolution" "stripe" "shopify" "twilio" "github" "gitlab" "bitbucket" "hubspot"
    "salesforce" "anyhook" "resend" "svix" "standard-webhooks" "slack" "telegram" "mercadopago"
    "asaas" "pagarme" "kiwify" "eduzz" "paypal" "square" "paddle" "adyen" "sendgrid" "mailgun"
    "woocommerce" "discord" "linear" "zoom" "microsoft-graph" "aws-sns" "google-pubsub"
    "cloudevents"
}

/// What people call a provider besides its name.
const ALIASES: &[(&str, &str)] = &[
    ("whatsapp", "meta"),
    ("whatsapp-cloud-api", "meta"),
    ("messenger", "meta"),
    ("instagram", "meta"),
    ("facebook", "meta"),
    ("mercado-pago", "mercadopago"),
    ("evolution-api", "evolution"),
    ("msgraph", "microsoft-graph"),
    ("ms-graph", "microsoft-graph"),
    ("graph", "microsoft-graph"),
    ("sns", "aws-sns"),
    ("amazon-sns", "aws-sns"),
    ("pubsub", "google-pubsub"),
    ("pub-sub", "google-pubsub"),
    ("gcp-pubsub", "google-pubsub"),
];

/// A provider name that isn't shipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no provider \"{name}\"{}", hint(.near))]
pub struct UnknownProvider {
    pub name: String,
    /// The shipped name that is nearest to it.
    pub near: Option<&'static str>,
}

fn hint(near: &Option<&'static str>) -> String {
    match near {
        Some(near) => format!("; did you mean \"{near}\"?"),
        None => format!("; there are {}", Provider::names().join(", ")),
    }
}

impl Provider {
    /// The names of all shipped providers.
    pub fn names() -> Vec<&'static str> {
        FILES.iter().map(|(name, _)| *name).collect()
    }

    /// A shipped provider; parsed once.
    pub fn shipped(name: &str) -> Option<Arc<Self>> {
        static PARSED: OnceLock<Vec<OnceLock<Arc<Provider>>>> = OnceLock::new();
        let index = FILES.iter().position(|(known, _)| *known == name)?;
        let parsed = PARSED.get_or_init(|| FILES.iter().map(|_| OnceLock::new()).collect());
        let (name, text) = FILES[index];
        let provider = parsed[index].get_or_init(|| {
            let parsed = Self::parse(&format!("{name}.toml"), text);
            Arc::new(parsed.unwrap_or_else(|error| panic!("a shipped provider file is wrong: {error}")))
        });
        Some(Arc::clone(provider))
    }

    /// The shipped provider that people may mean who call it so.
    pub fn alias(name: &str) -> Option<&'static str> {
        let spelled = name.to_lowercase().replace(['_', ' '], "-");
        ALIASES.iter().find(|(alias, _)| *alias == spelled).map(|(_, known)| *known)
    }

    /// A shipped provider, or an error that names the nearest one.
    pub fn named(name: &str) -> Result<Arc<Self>, UnknownProvider> {
        Self::shipped(name).ok_or_else(|| {
            let near = FILES.iter().map(|(known, _)| (distance(name, known), *known)).min();
            let near = near.filter(|(steps, known)| *steps <= 1 + known.len() / 3).map(|(_, known)| known);
            UnknownProvider { name: name.into(), near: Self::alias(name).or(near) }
        })
    }
}

/// How many letters must be added, dropped or changed to get from `a` to `b`, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (above, left) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, other) in b.chars().enumerate() {
            let changed = diagonal + usize::from(left != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[b.chars().count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_file_parses_under_its_own_name() {
        for name in Provider::names() {
            assert_eq!(Provider::shipped(name).expect("it is listed").name, name);
        }
    }

    #[test]
    fn a_misspelled_provider_is_answered_with_the_nearest() {
        assert_eq!(
            Provider::named("stirpe").unwrap_err().to_string(),
            "there is no provider \"stirpe\"; did you mean \"stripe\"?"
        );
        for (alias, name) in ALIASES {
            assert_eq!(Provider::named(alias).unwrap_err().near, Some(*name), "{alias}");
            assert!(Provider::shipped(name).is_some(), "{name}");
            assert!(Provider::shipped(alias).is_none(), "{alias} is a provider of its own");
        }
        assert_eq!(Provider::named("Mercado Pago").unwrap_err().near, Some("mercadopago"));
        assert!(
            Provider::named("zzzzzzzzzzzz").unwrap_err().to_string().contains("; there are hotmart, meta")
        );
    }
}
