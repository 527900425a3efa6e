// Package kmsg reads the kernel log from /dev/kmsg: parsing (pure, fuzzed) apart from following (overrun-safe).
package kmsg

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrMalformed marks a line that is no kernel log record.
var ErrMalformed = errors.New("malformed kernel log record")

// Record is one record of /dev/kmsg, as in
// https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
//
//	prefix,sequence,microseconds,flags[,more];body
//
// The ` KEY=value` lines that may follow a record are not part of it.
type Record struct {
	// Facility is 0 for the kernel itself. What user space writes into /dev/kmsg never gets facility 0.
	Facility int
	// Severity is the syslog level, 0 (emergency) to 7 (debug).
	Severity int
	// Seq grows by one from record to record and starts at 0 with every boot.
	Seq uint64
	// Time is the kernel's monotonic clock.
	Time time.Duration
	// Body is the text with the kernel's \xNN escapes undone. One record may hold several lines.
	Body string
}

// Parse reads the first line of a raw record. Errors wrap [ErrMalformed] and quote the line.
func Parse(line string) (Record, error) {
	header, body, found := strings.Cut(line, ";")
	prefix, err1 := number(&header, 31)
	seq, err2 := number(&header, 64)
	usec, err3 := number(&header, 53)
	if !found || header == "" || err1 != nil || err2 != nil || err3 != nil {
		return Record{}, fmt.Errorf("%w: %.80q", ErrMalformed, line)
	}
	return Record{
		Facility: int(prefix >> 3),
		Severity: int(prefix & 7),
		Seq:      seq,
		Time:     time.Duration(usec) * time.Microsecond,
		Body:     Unescape(strings.TrimRight(body, "\r\n")),
	}, nil
}

// number takes the number before the next comma off the header.
func number(header *string, bits int) (uint64, error) {
	field, rest, _ := strings.Cut(*header, ",")
	*header = rest
	return strconv.ParseUint(field, 10, bits)
}

// Unescape undoes the escapes of the kernel's msg_print_ext_body: bytes outside printable ASCII and the backslash
// are written as \xNN.
func Unescape(s string) string {
	if !strings.Contains(s, `\x`) {
		return s
	}
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, `\x`)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if n, err := strconv.ParseUint(after[:min(2, len(after))], 16, 8); err == nil && len(after) >= 2 {
			b.WriteByte(byte(n))
			after = after[2:]
		} else {
			b.WriteString(`\x`)
		}
		s = after
	}
}
