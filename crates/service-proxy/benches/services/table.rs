//! Figures as Markdown.

use std::fmt::{self, Display, Write as _};

/// A table that grows row by row.
#[derive(Debug)]
pub(crate) struct Table(String);

impl Table {
    pub(crate) fn new(title: &str, note: &str, columns: &[&str]) -> Self {
        let mut text = format!("### {title}\n\n");
        if !note.is_empty() {
            text.push_str(note);
            text.push_str("\n\n");
        }
        let lines = vec!["---"; columns.len()];
        let mut table = Self(text);
        table.row(columns);
        table.row(&lines);
        table
    }

    pub(crate) fn row(&mut self, cells: &[impl Display]) {
        self.0.push('|');
        for cell in cells {
            // Writing to a string cannot fail.
            let _ = write!(self.0, " {cell} |");
        }
        self.0.push('\n');
    }

    /// A line below the table.
    pub(crate) fn remark(&mut self, text: &str) {
        self.0.push('\n');
        self.0.push_str(text);
        self.0.push('\n');
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0)
    }
}

/// What a figure must not exceed, and whether it does: two cells.
pub(crate) fn bar(figure: f64, limit: Option<f64>, unit: &str) -> [String; 2] {
    match limit {
        None => [String::new(), String::new()],
        Some(limit) => [format!("≤ {limit} {unit}"), met(figure <= limit).to_owned()],
    }
}

/// The cell that says whether a bar is met.
pub(crate) fn met(is_met: bool) -> &'static str {
    if is_met { "yes" } else { "**no**" }
}

/// Samples, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn new(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        Self(samples)
    }

    /// The sample below which this share of them is.
    pub(crate) fn at(&self, share: f64) -> f64 {
        let index = (self.0.len().saturating_sub(1) as f64 * share).round() as usize;
        self.0.get(index).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    pub(crate) fn min(&self) -> f64 {
        self.at(0.0)
    }
}
