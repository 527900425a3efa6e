package xid

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/table"
)

// Overrides are a site's own classes. They replace the class of a code by the rules, for every line with that code.
type Overrides []Override

// Override is one of them; kinds without numbers have code 0.
type Override struct {
	Kind   Kind              `json:"kind"`
	Code   int               `json:"code"`
	Repair conditions.Repair `json:"repair"`
}

func (o Overrides) lookup(kind Kind, code int) (conditions.Repair, bool) {
	for _, row := range o {
		if row.Kind == kind && row.Code == code {
			return row.Repair, true
		}
	}
	return 0, false
}

// overridable are the kinds that an override may name.
var overridable = []Kind{KindXid, KindSXid, KindLost, KindInit, KindPeermem, KindUncoded}

// ParseOverrides reads CSV with the columns kind, code, repair and note; lines that begin with # are comments:
//
//	kind,code,repair,note
//	xid,63,Inspect,we look at every remapped row
//
// It is strict: an unknown kind or class, a number that is none or a row that stands there twice is an error.
func ParseOverrides(data []byte) (Overrides, error) {
	rows, err := table.Rows(data, "kind", "code", "repair", "note")
	if err != nil {
		return nil, err
	}
	var overrides Overrides
	for _, row := range rows {
		o := Override{Kind: Kind(row[0])}
		if !slices.Contains(overridable, o.Kind) {
			return nil, fmt.Errorf("row %q: kind %q is none of %q", row, row[0], overridable)
		}
		if o.Code, err = strconv.Atoi(row[1]); err != nil || o.Code < 0 {
			return nil, fmt.Errorf("row %q: code %q is no number", row, row[1])
		}
		if o.Repair, err = conditions.ParseRepair(row[2]); err != nil {
			return nil, fmt.Errorf("row %q: %w", row, err)
		}
		if _, twice := overrides.lookup(o.Kind, o.Code); twice {
			return nil, fmt.Errorf("row %q: %s %d stands there twice", row, o.Kind, o.Code)
		}
		overrides = append(overrides, o)
	}
	return overrides, nil
}
