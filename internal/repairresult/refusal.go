package repairresult

import "fmt"

// Refusal is an error that means that nothing was done and that it may be tried again later.
type Refusal struct {
	Message string
	Holders []Holder
}

func (r *Refusal) Error() string { return r.Message }

// Refuse returns a refusal without holders.
func Refuse(format string, a ...any) error { return &Refusal{Message: fmt.Sprintf(format, a...)} }
