package view

import (
	"fmt"
	"math"
)

// step is a step of the scale of colours. It ends where the next one begins. Class is its class in the style sheet.
type step struct {
	// Above is where the step begins, as a share of the median below (negative) or above it.
	Above float64
	Class string
}

// steps are from slow to fast. The verdict calls a test slow from 4 % on, and the noise of a healthy fabric is smaller. From
// 35 % on, more detail would not change what is to be done.
var steps = [...]step{{math.Inf(-1), "w4"}, {-0.35, "w3"}, {-0.20, "w2"}, {-0.10, "w1"}, {-0.05, "n"}, {0.05, "f1"}, {0.10, "f2"}}

// class is the class of a deviation from the median.
func class(deviation float64) string {
	c := steps[0].Class
	for _, s := range steps {
		if deviation >= s.Above {
			c = s.Class
		}
	}
	return c
}

// precision is the number of decimals with which bandwidths around the median have about three digits.
func precision(median float64) int {
	switch {
	case median >= 200:
		return 0
	case median >= 10:
		return 1
	}
	return 2
}

// percent is a share in whole percent, with its sign.
func percent(share float64) string {
	rounded := math.Round(100 * share)
	switch {
	case rounded < 0:
		return fmt.Sprintf("−%.0f %%", -rounded)
	case rounded > 0:
		return fmt.Sprintf("+%.0f %%", rounded)
	}
	return "0 %"
}

// ticks are round numbers from 0 to at most top, about five.
func ticks(top float64) []float64 {
	if top <= 0 {
		return nil
	}
	size := math.Pow(10, math.Floor(math.Log10(top/5)))
	for _, factor := range []float64{2, 2.5, 2} { // 1, 2, 5, 10
		if top/size <= 6 {
			break
		}
		size *= factor
	}
	var list []float64
	for k := 0; float64(k)*size <= top; k++ {
		list = append(list, float64(k)*size)
	}
	return list
}
