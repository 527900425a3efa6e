// Package table reads the tables of rules that the plugins come with and those that a site gives them.
package table

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"slices"
	"strings"
)

// Rows reads CSV and returns the rows after the first, which must be the head. Lines that begin with # are comments. Each
// row has as many columns as the head.
func Rows(data []byte, head ...string) ([][]string, error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.Comment = '#'
	r.FieldsPerRecord = len(head)
	rows, err := r.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 || !slices.Equal(rows[0], head) {
		return nil, fmt.Errorf("the first row is not %s", strings.Join(head, ","))
	}
	return rows[1:], nil
}
