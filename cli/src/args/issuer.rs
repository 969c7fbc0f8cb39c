use clap::{Args, Subcommand, ValueEnum};
use postern_config::ConfigDuration;
use postern_issuer::Quota;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Run an issuer, or see and change the accounts and token keys of one.
///
/// Without a command it runs the issuer. The commands work on the issuer that runs with the same configuration, at once, or on its
/// files while it is stopped. They are for the user that the issuer runs as.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Issuer {
    #[command(subcommand)]
    pub(crate) command: Option<IssuerCommand>,
    // Not a flattened `Server`, whose configuration is not optional.
    /// The configuration file (TOML); docs/reference/configuration.md has every key
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) config: Option<PathBuf>,
    /// Serve TLS with a certificate for localhost that is made for it, to try it: clients trust ca.pem in this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) self_signed: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum IssuerCommand {
    /// See and change who may have tokens
    #[command(subcommand)]
    Account(AccountCommand),
    /// See and change the keys that sign tokens
    #[command(subcommand)]
    Key(KeyCommand),
    /// Print how many tokens each account got in each period
    Usage(UsageArgs),
    /// Move accounts, usage and token keys of a stopped issuer into its `[accounts] database`, or back into files
    Migrate {
        /// Where to
        #[arg(long)]
        to: Place,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Copy the database of accounts to a new file, while the issuer runs or not
    Backup {
        /// The new file
        to: PathBuf,
        #[command(flatten)]
        daemon: Daemon,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Place {
    /// The PostgreSQL of `[accounts] database`
    Postgres,
    /// Files in `[keys] directory`
    Sqlite,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AccountCommand {
    /// Make an account, and print its API key: once, since only a hash of it is kept. With a certificate it needs none
    Add(Box<NewAccount>),
    /// List the accounts
    List(Output),
    /// Show an account with its keys and its usage
    Show(One),
    /// Refuse tokens to an account until it is enabled again
    Disable(One),
    /// Give tokens to a disabled account again
    Enable(One),
    /// Make another API key for an account, and print it: once. The others end after a grace
    RotateKey {
        /// The account's name
        name: String,
        /// Write the key to a new file, which only you can read, instead of printing it
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        out: Option<PathBuf>,
        /// Remaining life of the account's other keys; "0s" ends them at once
        #[arg(long, value_name = "SPAN", default_value = "1d", conflicts_with = "keep")]
        grace: ConfigDuration,
        /// Leave the other keys as they are: this one is for another device
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        output: Output,
    },
    /// End one API key of an account at once
    RetireKey {
        /// The account's name
        name: String,
        /// The key's number, as `show` lists it
        key: i64,
        #[command(flatten)]
        output: Output,
    },
    /// Let a client's certificate stand for an account (mutual TLS), in addition to its API keys and other certificates
    AddCertificate {
        /// The account's name
        name: String,
        /// The client's certificate (PEM), its own first. It is known by its public key, so one that is renewed for the same key is known, too
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// No longer let a client's certificate stand for an account
    RemoveCertificate {
        /// The account's name
        name: String,
        /// The certificate's number, as `show` lists it
        certificate: i64,
        #[command(flatten)]
        output: Output,
    },
    /// Change what an account may have: quota, rate, tier, end
    Quota(Change),
    /// Remove an account and its API keys. Its usage is kept as long as that of others
    Remove(One),
    /// Make the accounts what a file declares (TOML): adds and changes, all of them or none
    Apply {
        /// The file, with `[[accounts]]`; docs/operate/accounts.md has an example
        file: PathBuf,
        /// Also remove the accounts that an earlier file declared, and this one does not. Those made by `add` stay
        #[arg(long)]
        prune: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// List the keys that have not expired, the newest first
    List(Output),
    /// Make a successor that takes over out of turn. Tokens that are out stay good
    Rotate {
        /// Of this token type alone: 2, 5 or 1. Without it, of each that is issued
        #[arg(long = "type", value_name = "N")]
        token_type: Option<u16>,
        /// In how long the successor takes over; "0s" at once. Without it, after keys.publish_ahead
        #[arg(long = "in", value_name = "SPAN")]
        ahead: Option<ConfigDuration>,
        #[command(flatten)]
        output: Output,
    },
    /// End a key at once, because it was copied: it is not listed, signs no more, and its tokens become void
    Retire {
        /// The key's id, as `list` has it. With --now it may be left out: then all keys end, those to come, too
        #[arg(required_unless_present = "now")]
        id: Option<String>,
        /// In an emergency: the directory has gateways refuse its tokens at once, whatever their removed_grace is
        #[arg(long)]
        now: bool,
        /// Do it. Without this, the command prints what would happen
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Copy a key to a new file. Anyone who has it can issue tokens
    Export {
        /// The key's id, as `list` has it
        id: String,
        /// The new file; in a directory, the copy has the name of the key's own file
        file: PathBuf,
        /// Decrypt the copy, where key files are encrypted (keys.passphrase_file): gateways read plain ones
        #[arg(long)]
        plain: bool,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Take in a key from a file that was exported, under the name that it has in the issuer's directory
    Import {
        /// The key file
        file: PathBuf,
        /// The passphrase of an encrypted file, where it is not in keys.passphrase_file: the first line of this file
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
}

/// An issuer's configuration.
#[derive(Debug, Args)]
pub(crate) struct Daemon {
    /// The configuration file (TOML); docs/reference/configuration.md has every key
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Output {
    #[command(flatten)]
    pub(crate) daemon: Daemon,
    /// Print JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct One {
    /// The account's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The two come together, or not at all.
#[derive(Debug, Args)]
pub(crate) struct Pace {
    /// Tokens a second, besides the quota
    #[arg(long, value_name = "N", requires = "burst")]
    pub(crate) rate: Option<NonZeroU32>,
    /// Tokens at once, after a pause
    #[arg(long, value_name = "N", requires = "rate")]
    pub(crate) burst: Option<NonZeroU32>,
}

#[derive(Debug, Args)]
pub(crate) struct NewAccount {
    /// The account's name: unique, for you, never shown to clients
    pub(crate) name: String,
    /// Tokens in each period, such as "10000/1d". Without it the account has the terms of its tier
    #[arg(long, value_name = "N/PERIOD", required_unless_present = "tier")]
    pub(crate) quota: Option<Quota>,
    #[command(flatten)]
    pub(crate) pace: Pace,
    /// A client's certificate (PEM) by which the account is known in place of an API key; may be given several times
    #[arg(long, value_name = "FILE")]
    pub(crate) certificate: Vec<PathBuf>,
    /// One of the tiers in the configuration file
    #[arg(long, value_name = "NAME")]
    pub(crate) tier: Option<String>,
    /// The first day (UTC) without tokens
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub(crate) expires: Option<String>,
    #[command(flatten)]
    pub(crate) joining: Joining,
    /// Write the API key, with --join the join string, to a new file, which only you can read, instead of printing it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "certificate"])]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    /// The account's name
    pub(crate) name: String,
    /// Tokens in each period, such as "10000/1d". What was used counts against it, unless the period is another one
    #[arg(value_name = "N/PERIOD", required_unless_present_any = ["no_quota", "rate", "no_rate", "tier", "expires"])]
    pub(crate) quota: Option<Quota>,
    /// Drop the account's own quota: the tier's terms apply
    #[arg(long, conflicts_with = "quota")]
    pub(crate) no_quota: bool,
    #[command(flatten)]
    pub(crate) pace: Pace,
    /// Drop the account's own rate
    #[arg(long, conflicts_with = "rate")]
    pub(crate) no_rate: bool,
    /// One of the tiers in the configuration file; "" for none
    #[arg(long, value_name = "NAME")]
    pub(crate) tier: Option<String>,
    /// The first day (UTC) without tokens, or "never"
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub(crate) expires: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    pub(crate) daemon: Daemon,
    /// Of this account alone
    #[arg(long, value_name = "NAME")]
    pub(crate) account: Option<String>,
    /// Only periods that end after the beginning of this day (UTC)
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub(crate) since: Option<String>,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = UsageFormat::Csv)]
    pub(crate) format: UsageFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UsageFormat {
    /// One row a period, below a row of names
    Csv,
    /// One object a line
    Json,
}

/// A join string printed with an account's API key. Omitted values come from `[join]` of the issuer's configuration.
#[derive(Debug, Default, Args)]
pub(crate) struct Joining {
    /// Print a join string, too: all that `postern client join` needs. It holds the API key, so it is as secret
    #[arg(long)]
    pub(crate) join: bool,
    /// A gateway for the join string, in place of join.gateways; repeat it for several, in order of preference
    #[arg(long = "gateway", value_name = "URL", requires = "join")]
    pub(crate) gateways: Vec<String>,
    /// This issuer's URL for the join string, in place of join.issuers; repeat it for several with the same keys
    #[arg(long = "issuer", value_name = "URL", requires = "join")]
    pub(crate) issuers: Vec<String>,
    /// The name in the gateways' challenges, in place of join.origin
    #[arg(long, value_name = "NAME", requires = "join")]
    pub(crate) origin: Option<String>,
    /// PEM certificates to trust for the gateways, in place of join.gateway_ca
    #[arg(long, value_name = "FILE", requires = "join")]
    pub(crate) gateway_ca: Option<PathBuf>,
    /// PEM certificates to trust for the issuer, in place of join.issuer_ca
    #[arg(long, value_name = "FILE", requires = "join")]
    pub(crate) issuer_ca: Option<PathBuf>,
}
