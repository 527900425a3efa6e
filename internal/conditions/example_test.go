package conditions_test

import (
	"fmt"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// The message of a NodeCondition is the line that the plugin printed.
func ExampleParseMessage() {
	m, err := conditions.ParseMessage("ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error; gpu 0000:4e:00: Xid 119 GSP RPC timeout; +2 more")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the node needs", m.Repair)
	for _, part := range m.Parts {
		fmt.Printf("%s has %s\n", part.Subject, part.Text)
	}
	fmt.Println(m.More, "more did not fit")
	// Output:
	// the node needs ResetGPU
	// gpu 0000:1b:00 has Xid 95 uncontained ECC error
	// gpu 0000:4e:00 has Xid 119 GSP RPC timeout
	// 2 more did not fit
}
