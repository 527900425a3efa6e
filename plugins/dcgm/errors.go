package main

import (
	_ "embed"
	"fmt"
	"strconv"
	"sync"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/table"
)

// errorRow is what is known of an error of DCGM's.
type errorRow struct {
	name   string
	repair conditions.Repair
	// text is the reason of a class that is ours; empty where DCGM's severity decides.
	text string
}

// severities are the classes of DCGM_ERROR_* (dcgm_errors.h), by number.
var severities = []struct {
	name   string
	repair conditions.Repair
}{
	{"NONE", 0}, {"MONITOR", conditions.Monitor}, {"ISOLATE", conditions.Inspect}, {"UNKNOWN", conditions.Inspect},
	{"TRIAGE", conditions.Inspect}, {"CONFIG", conditions.Monitor}, {"RESET", conditions.ResetGPU},
}

// xidError is DCGM_FR_XID_ERROR.
const xidError = 101

//go:embed data/errors.csv
var errorsCSV []byte

// errorRows are the errors by DCGM_FR_* number.
var errorRows = sync.OnceValue(func() map[int]errorRow {
	rows, err := parseErrors(errorsCSV)
	if err != nil {
		panic(fmt.Sprintf("embedded table of DCGM errors: %v", err))
	}
	return rows
})

func parseErrors(data []byte) (map[int]errorRow, error) {
	rows, err := table.Rows(data, "code", "name", "severity", "repair", "text")
	if err != nil {
		return nil, err
	}
	byName := map[string]conditions.Repair{}
	for _, s := range severities {
		byName[s.name] = s.repair
	}
	errors := map[int]errorRow{}
	for _, row := range rows {
		code, err := strconv.Atoi(row[0])
		if err != nil {
			return nil, err
		}
		e := errorRow{name: row[1], text: row[4]}
		var known bool
		if e.repair, known = byName[row[2]]; !known {
			return nil, fmt.Errorf("error %d: no severity %q", code, row[2])
		}
		if row[3] != "" {
			if e.repair, err = conditions.ParseRepair(row[3]); err != nil {
				return nil, fmt.Errorf("error %d: %w", code, err)
			}
		}
		errors[code] = e
	}
	return errors, nil
}
