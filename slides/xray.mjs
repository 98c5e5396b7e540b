// The X-ray's own drawing without its page: {scripts, trace, views} comes in as JSON, a picture for each view goes out.
// A view: steps `from` to `to` with a frame at `cursor`, drawn `width` pixels wide.
import { readFileSync } from 'node:fs'

const { scripts, trace, views } = JSON.parse(readFileSync(0, 'utf8'))
const place = width => ({ clientWidth: width, attributes: {}, setAttribute(name, value) { this.attributes[name] = value } })
const page = { getElementById: () => ({ textContent: JSON.stringify(trace) }) }
const xray = new Function('document', `${scripts}; remember(); return { band, drawBudget, drawPool }`)(page)

const draw = ({ from, to, cursor, width }) => {
  const [steps, budget, pool] = [place(width), place(width), place(width)]
  const says = { budget: {}, pool: {} }
  xray.band(steps, { from, to, end: to, columns: to - from, cursor, only: null, fades: false })
  xray.drawBudget(budget, says.budget, cursor, null)
  xray.drawPool(pool, says.pool, cursor, null)
  return {
    steps: steps.innerHTML, words: steps.attributes['aria-label'],
    budget: budget.innerHTML, budgetSays: says.budget.textContent,
    pool: pool.innerHTML, poolSays: says.pool.textContent,
  }
}
process.stdout.write(JSON.stringify(views.map(draw)))
