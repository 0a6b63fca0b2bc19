//! What is printed and written: for each workload a heading, notes, tables in Markdown, and the plot.

use std::fmt::Write as _;
use std::{fs, thread};

use comfy_table::{CellAlignment, presets};

use crate::Failure;
use crate::candidates::Candidate;
use crate::options::Options;
use crate::plot::Panel;
use crate::server_under_test::ServerUnderTest;

/// The results of a workload.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) notes: Vec<String>,
    pub(crate) tables: Vec<Table>,
    pub(crate) panels: Vec<Panel>,
    /// What fails the whole run, once all is measured.
    pub(crate) failures: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Table {
    title: String,
    table: comfy_table::Table,
}

impl Table {
    /// Without a title if that is empty. Names are to the left, figures to the right.
    pub(crate) fn new(title: &str, head: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_header(head);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        Self { title: title.to_owned(), table }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.table.add_row(cells.into_iter().collect::<Vec<_>>());
    }
}

/// Grows from section to section.
#[derive(Debug)]
pub(crate) struct Report(String);

impl Report {
    /// Begins with the candidates, and with the machine and the server they run on.
    pub(crate) fn begin(options: &Options, candidates: &[Candidate]) -> Result<Self, Failure> {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_header(["candidate", "version", "settings"]);
        for one in candidates {
            table.add_row([one.name, one.version.as_str(), one.settings]);
        }
        let text = format!(
            "# Locks, measured\n\nA {} run on {}, with redis-server {}, everything on this machine.\n\n{table}\n",
            if options.quick { "quick" } else { "full" },
            machine(),
            ServerUnderTest::start()?.version()?,
        );
        println!("{text}");
        Ok(Self(text))
    }

    pub(crate) fn add(&mut self, section: &Section, picture: &str) {
        let Section { title, notes, tables, .. } = section;
        let mut text = format!("## {title}\n\n{}\n", notes.join("\n\n"));
        for Table { title, table } in tables {
            let title = if title.is_empty() { String::new() } else { format!("\n### {title}\n") };
            let _ = write!(text, "{title}\n{table}\n"); // into a String: cannot fail
        }
        println!("{text}");
        let _ = write!(self.0, "\n{text}\n![{title}]({picture})\n");
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

fn machine() -> String {
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores of {}", model.map_or("an unnamed processor", |(_, model)| model.trim()))
}
