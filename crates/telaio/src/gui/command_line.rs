//! The same on the command line: what the page shows to be copied.
//!
//! A question may come from a link that somebody else made, so whatever stands in it is quoted for the
//! shell: pasting the line asks the question, and does nothing else.

use std::borrow::Cow;

use telaio_source::SourceSpec;

use super::AdminAgent;

/// A command line that is put together word by word.
pub(super) struct CommandLine(String);

impl CommandLine {
    pub(super) fn new(command: &str) -> Self {
        Self(command.to_owned())
    }

    /// An option with its value.
    pub(super) fn with(mut self, option: &str, value: &str) -> Self {
        // What begins with a dash would be taken for another option.
        let between = if value.starts_with('-') { "=" } else { " " };
        for part in [" ", option, between, &quoted(value)] {
            self.0.push_str(part);
        }
        self
    }

    pub(super) fn end(self) -> String {
        self.0
    }
}

/// A word as a POSIX shell takes it: as it is if nothing in it means something.
fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@%+=:,./_-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
}

impl AdminAgent {
    /// `telaio trace` on this node, with what this agent reads.
    pub(super) fn trace_command(&self) -> CommandLine {
        let absolute =
            |path: &std::path::Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let spec = match &self.spec {
            SourceSpec::Dir(path) => SourceSpec::Dir(absolute(path)),
            SourceSpec::Kube(Some(path)) => SourceSpec::Kube(Some(absolute(path))),
            other => other.clone(),
        };
        let mut line = CommandLine::new("telaio trace").with("--source", &spec.to_string());
        if let Some(node) = &self.context {
            line = line.with("--node", &node.name);
        }
        if matches!(spec, SourceSpec::Dir(_)) {
            // There are the addresses that it gave.
            line = line.with("--state-dir", &absolute(&self.state_dir).display().to_string());
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_shell_would_act_upon_is_quoted() {
        let line = |value| CommandLine::new("x").with("--url", value).end();
        assert_eq!(line("http://a.example/b?c=d"), "x --url 'http://a.example/b?c=d'");
        assert_eq!(line("http://a.example/b"), "x --url http://a.example/b");
        for bad in
            ["http://a/;reboot", "http://a/$(reboot)", "http://a/`reboot`", "a b", "", "a\nb"]
        {
            assert_eq!(line(bad), format!("x --url '{bad}'"));
        }
        assert_eq!(line("it's"), r"x --url 'it'\''s'");
        assert_eq!(line("-x"), "x --url=-x");
    }

    #[cfg(unix)]
    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for word in ["a'; echo no; '", "$(echo no)", "*", "~", "\\", "a\nb", "\"x\"", "!!"] {
            let script = format!("printf %s {}", quoted(word));
            let ran = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(ran.stdout).unwrap(), word);
        }
    }
}
