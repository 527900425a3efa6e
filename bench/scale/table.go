package main

import (
	"fmt"
	"io"
	"strings"
)

// table has a row for each figure and a column for each size.
type table struct {
	columns []string
	rows    []string // in the order in which they were first measured
	cells   map[string][]string
}

func (t *table) column(title string) { t.columns = append(t.columns, title) }

// set fills a cell of the last column.
func (t *table) set(row, format string, args ...any) {
	if t.cells == nil {
		t.cells = map[string][]string{}
	}
	if _, known := t.cells[row]; !known {
		t.rows = append(t.rows, row)
	}
	cells := t.cells[row]
	for len(cells) < len(t.columns) {
		cells = append(cells, "-")
	}
	cells[len(t.columns)-1] = fmt.Sprintf(format, args...)
	t.cells[row] = cells
}

func (t *table) print(out io.Writer) {
	fmt.Fprintf(out, "| | %s |\n|---|%s\n", strings.Join(t.columns, " | "), strings.Repeat("--:|", len(t.columns)))
	for _, row := range t.rows {
		cells := t.cells[row]
		for len(cells) < len(t.columns) {
			cells = append(cells, "-")
		}
		fmt.Fprintf(out, "| %s | %s |\n", row, strings.Join(cells, " | "))
	}
}
